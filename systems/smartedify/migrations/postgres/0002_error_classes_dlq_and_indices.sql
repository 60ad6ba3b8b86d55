-- What the document lists under future migrations.
ALTER TABLE outbox_events ADD COLUMN IF NOT EXISTS error_class text;
ALTER TABLE outbox_events ADD COLUMN IF NOT EXISTS last_error_at timestamptz;

CREATE TABLE IF NOT EXISTS outbox_events_dlq (LIKE outbox_events INCLUDING DEFAULTS);
CREATE UNIQUE INDEX IF NOT EXISTS outbox_events_dlq_id ON outbox_events_dlq (id);
CREATE INDEX IF NOT EXISTS idx_outbox_dlq_last_error_at ON outbox_events_dlq (last_error_at);

CREATE INDEX IF NOT EXISTS idx_outbox_ready ON outbox_events (next_retry_at) WHERE published_at IS NULL;
CREATE INDEX IF NOT EXISTS idx_outbox_published_at ON outbox_events (published_at);
