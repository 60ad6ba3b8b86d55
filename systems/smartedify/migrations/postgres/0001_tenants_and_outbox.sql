-- The tenant service's own tables. A tenant's version counts its changes; whoever changes a tenant holds its row.
CREATE TABLE IF NOT EXISTS tenants (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    governance jsonb NOT NULL DEFAULT '{}',
    version    bigint NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS users (
    id        uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES tenants,
    email     text NOT NULL,
    role      text NOT NULL,
    UNIQUE (tenant_id, email)
);
CREATE TABLE IF NOT EXISTS assemblies (
    id            uuid PRIMARY KEY,
    tenant_id     uuid NOT NULL REFERENCES tenants,
    title         text NOT NULL,
    scheduled_for timestamptz NOT NULL
);

-- The outbox as it is documented. clock_timestamp(), not now(): now() is the transaction's start, which tells nothing of
-- two writers that waited for each other.
CREATE TABLE IF NOT EXISTS outbox_events (
    id             uuid PRIMARY KEY,
    aggregate_type text NOT NULL,
    aggregate_id   text NOT NULL,
    event_type     text NOT NULL,
    payload        jsonb NOT NULL,
    retry_count    int NOT NULL DEFAULT 0,
    next_retry_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at   timestamptz,
    last_error     text,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
