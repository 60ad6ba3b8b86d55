-- Inbox rows are proof of what was done. Where they are gone, a copy would take effect a second time.

-- Do its events leave this database, for a broker or an endpoint? Then what comes twice is for an inbox to notice. Its
-- relay says so when it starts; until then, in doubt, they do.
ALTER TABLE relevo.subscription ADD COLUMN outside boolean NOT NULL DEFAULT true;

-- Up to when inbox rows may be gone: one row. Whoever brings events again shares it until its transaction ends, and
-- retention holds it alone: between the look and the replay no proof goes.
CREATE TABLE relevo.inbox_horizon (
    one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
    gone_until timestamptz
);
-- What went before there was a note is not known: proof is complete from the oldest row on that is left.
INSERT INTO relevo.inbox_horizon (gone_until) SELECT pg_catalog.min(seen_at) FROM relevo.inbox;

-- The table itself leaves the note, whoever deletes: an older program beside this one too.
CREATE FUNCTION relevo.note_inbox_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE relevo.inbox_horizon h SET gone_until = g.newest
      FROM (SELECT pg_catalog.max(gone.seen_at) AS newest FROM gone) g
     WHERE g.newest > coalesce(h.gone_until, '-infinity');
    RETURN NULL;
END
$$;
CREATE TRIGGER inbox_gone AFTER DELETE ON relevo.inbox REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION relevo.note_inbox_gone();
