-- What the columns of an adopted table mean (JSON), for whoever asks about one of its rows without the configuration at hand.
ALTER TABLE relevo_adopted ADD COLUMN mapping TEXT;
