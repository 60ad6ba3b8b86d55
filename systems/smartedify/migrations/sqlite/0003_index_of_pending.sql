-- Ours: what is pending in the order in which it is claimed. Without it each claim of fifty rows sorts the whole backlog.
CREATE INDEX IF NOT EXISTS idx_outbox_pending ON outbox_events (created_at) WHERE published_at IS NULL;
