-- Outbox tables of somebody else's that are relayed in place. What they have no column for is kept here.

CREATE TABLE relevo.adopted (
    name       text        PRIMARY KEY,
    table_name text        NOT NULL,
    adopted_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

-- Rows that are on their way (claimed); and, where their own table cannot tell, those that are done with.
CREATE TABLE relevo.claim (
    adoption   text        NOT NULL,
    row_id     text        NOT NULL,
    event      uuid        NOT NULL,
    state      text        NOT NULL DEFAULT 'claimed' CHECK (state IN ('claimed', 'published', 'dead')),
    claimed_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (adoption, row_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX claim_event ON relevo.claim (event, adoption);
