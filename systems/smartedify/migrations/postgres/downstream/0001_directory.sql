-- The downstream service has a database of its own: a directory of tenants, and an audit of every event that took effect.
CREATE TABLE IF NOT EXISTS tenant_directory (
    tenant_id          text PRIMARY KEY,
    name               text,
    name_version       bigint NOT NULL DEFAULT 0,
    governance         jsonb,
    governance_version bigint NOT NULL DEFAULT 0,
    users              bigint NOT NULL DEFAULT 0,
    assemblies         bigint NOT NULL DEFAULT 0
);

-- No unique key, on purpose: an effect that happened twice would show as two rows.
CREATE TABLE IF NOT EXISTS audit_log (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id   text NOT NULL,
    tenant_id  text NOT NULL,
    version    bigint NOT NULL,
    event_type text NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS idx_audit_event ON audit_log (event_id);

CREATE TABLE IF NOT EXISTS processed_event_ids (
    consumer     text NOT NULL,
    event_id     text NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX IF NOT EXISTS idx_processed_at ON processed_event_ids (processed_at);
