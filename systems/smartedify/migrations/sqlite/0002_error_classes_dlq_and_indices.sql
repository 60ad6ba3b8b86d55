-- What the document lists under future migrations. Its columns error_class and last_error_at are added by src/migrate.rs,
-- where they are missing: SQLite has no ADD COLUMN IF NOT EXISTS.

CREATE TABLE IF NOT EXISTS outbox_events_dlq (
    id             TEXT NOT NULL PRIMARY KEY,
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    event_type     TEXT NOT NULL,
    payload        TEXT NOT NULL,
    retry_count    INTEGER NOT NULL DEFAULT 0,
    next_retry_at  TEXT NOT NULL,
    published_at   TEXT,
    last_error     TEXT,
    created_at     TEXT NOT NULL,
    updated_at     TEXT NOT NULL,
    error_class    TEXT,
    last_error_at  TEXT
);
CREATE INDEX IF NOT EXISTS idx_outbox_dlq_last_error_at ON outbox_events_dlq (last_error_at);

CREATE INDEX IF NOT EXISTS idx_outbox_ready ON outbox_events (next_retry_at) WHERE published_at IS NULL;
CREATE INDEX IF NOT EXISTS idx_outbox_published_at ON outbox_events (published_at);
