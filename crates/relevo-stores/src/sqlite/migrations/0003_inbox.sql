-- The last event of a key that landed in the log of `consumer`. The key waits until the consumer's subscription has
-- decided it: its cursor is past the row, and the key is not parked.
CREATE TABLE relevo_inbox_key (
    consumer TEXT    NOT NULL,
    key      TEXT    NOT NULL,
    lane     INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    PRIMARY KEY (consumer, key)
) WITHOUT ROWID;
