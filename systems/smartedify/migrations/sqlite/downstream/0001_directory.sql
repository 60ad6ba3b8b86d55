-- The downstream service has a database of its own: a directory of tenants, and an audit of every event that took effect.
CREATE TABLE IF NOT EXISTS tenant_directory (
    tenant_id          TEXT PRIMARY KEY,
    name               TEXT,
    name_version       INTEGER NOT NULL DEFAULT 0,
    governance         TEXT,
    governance_version INTEGER NOT NULL DEFAULT 0,
    users              INTEGER NOT NULL DEFAULT 0,
    assemblies         INTEGER NOT NULL DEFAULT 0
);

-- No unique key, on purpose: an effect that happened twice would show as two rows.
CREATE TABLE IF NOT EXISTS audit_log (
    number     INTEGER PRIMARY KEY,
    event_id   TEXT NOT NULL,
    tenant_id  TEXT NOT NULL,
    version    INTEGER NOT NULL,
    event_type TEXT NOT NULL,
    at         TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE INDEX IF NOT EXISTS idx_audit_event ON audit_log (event_id);

CREATE TABLE IF NOT EXISTS processed_event_ids (
    consumer     TEXT NOT NULL,
    event_id     TEXT NOT NULL,
    processed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX IF NOT EXISTS idx_processed_at ON processed_event_ids (processed_at);
