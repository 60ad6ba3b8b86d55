-- Ours: which broker the outbox goes to (src/outbox/choice.rs). One row.
CREATE TABLE IF NOT EXISTS outbox_broker (
    one       INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    broker    TEXT NOT NULL,
    chosen_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
