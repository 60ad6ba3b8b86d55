-- Do its events leave this file, for a broker or an endpoint? Then what comes twice is for an inbox to notice. Its
-- relay says so when it starts; until then, in doubt, they do.
ALTER TABLE relevo_subscription ADD COLUMN outside INTEGER NOT NULL DEFAULT 1;

-- Inbox rows are proof of what was done. Whoever deletes one leaves a note up to when proof is gone.
-- What went before there was a note is not known: proof is complete from the oldest row on that is left.
INSERT INTO relevo_fact (name, value) SELECT 'inbox_gone_until', first_at FROM relevo_inbox ORDER BY first_at LIMIT 1;

CREATE TRIGGER relevo_inbox_gone AFTER DELETE ON relevo_inbox
BEGIN
    INSERT INTO relevo_fact (name, value) VALUES ('inbox_gone_until', OLD.first_at)
    ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value);
END;
