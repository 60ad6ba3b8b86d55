-- Optional: the outbox partitioned by month of created_at (`smartedify migrate --partition`). Rows move as they are, so it
-- may be done at any time; what is written meanwhile waits for the lock. A row whose month has no partition yet lands in
-- the default one. Doing it twice does nothing.
DO $$
BEGIN
    IF (SELECT relkind FROM pg_class WHERE oid = 'outbox_events'::regclass) = 'p' THEN
        RETURN;
    END IF;
    LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE;
    ALTER TABLE outbox_events RENAME TO outbox_events_before;
    ALTER INDEX idx_outbox_ready RENAME TO idx_outbox_ready_before;
    ALTER INDEX idx_outbox_published_at RENAME TO idx_outbox_published_at_before;
    ALTER INDEX idx_outbox_pending RENAME TO idx_outbox_pending_before;
    CREATE TABLE outbox_events (LIKE outbox_events_before INCLUDING DEFAULTS) PARTITION BY RANGE (created_at);
    ALTER TABLE outbox_events ADD PRIMARY KEY (id, created_at);
    CREATE INDEX idx_outbox_ready ON outbox_events (next_retry_at) WHERE published_at IS NULL;
    CREATE INDEX idx_outbox_published_at ON outbox_events (published_at);
    CREATE INDEX idx_outbox_pending ON outbox_events (created_at) WHERE published_at IS NULL;
    CREATE TABLE outbox_events_default PARTITION OF outbox_events DEFAULT;
    INSERT INTO outbox_events SELECT * FROM outbox_events_before;
    DROP TABLE outbox_events_before;
END $$;
