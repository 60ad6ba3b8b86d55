-- What the columns of an adopted table mean, for whoever asks about one of its rows without the configuration at hand.
ALTER TABLE relevo.adopted ADD COLUMN mapping jsonb;
