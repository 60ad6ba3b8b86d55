-- Ours: which broker the outbox goes to (src/outbox/choice.rs). One row.
CREATE TABLE IF NOT EXISTS outbox_broker (
    one       int PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    broker    text NOT NULL,
    chosen_at timestamptz NOT NULL DEFAULT now()
);
