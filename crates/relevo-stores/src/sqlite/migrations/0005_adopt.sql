-- Outbox tables of somebody else's that are relayed in place. What they have no column for is kept here.

CREATE TABLE relevo_adopted (
    name       TEXT PRIMARY KEY,
    table_name TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Rows that are on their way (claimed); and, where their own table cannot tell, those that are done with. row_id has no
-- type: it is kept as the row has it.
CREATE TABLE relevo_claim (
    adoption   TEXT NOT NULL,
    row_id     NOT NULL,
    event      TEXT NOT NULL,
    state      TEXT NOT NULL DEFAULT 'claimed' CHECK (state IN ('claimed', 'published', 'dead')),
    claimed_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)),
    PRIMARY KEY (adoption, row_id)
) WITHOUT ROWID;
CREATE INDEX relevo_claim_event ON relevo_claim (event, adoption);
