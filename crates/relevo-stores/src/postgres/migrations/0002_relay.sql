-- What the relay keeps: subscriptions, cursors and leases, parked keys, dead letters, requests, the inbox.

CREATE TABLE relevo.subscription (
    name             text        PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 255),
    topics           text[]      NOT NULL,
    destination      text        NOT NULL,
    after_dead       text        NOT NULL CHECK (after_dead IN ('continue', 'hold')),
    paused           text,
    created_at       timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- What was visible where it began: it does not have those events.
    start_generation bigint      NOT NULL,
    start_snapshot   text        NOT NULL,
    start_top        bigint      NOT NULL
);

-- One row per lane. Its updates stay on their page: no index on what changes.
CREATE TABLE relevo.cursor (
    subscription text        NOT NULL,
    lane         smallint    NOT NULL CHECK (lane BETWEEN 0 AND 63),
    owner        text,
    token        bigint      NOT NULL,
    from_number  bigint      NOT NULL,
    from_nonce   bigint      NOT NULL,
    to_number    bigint,
    to_nonce     bigint,
    seq          bigint      NOT NULL DEFAULT 0,
    delivered    bigint      NOT NULL DEFAULT 0,
    moved_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (subscription, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE relevo.member (
    subscription text        NOT NULL,
    member       text        NOT NULL,
    beat         bigint      NOT NULL,
    note         jsonb       NOT NULL DEFAULT '{}',
    seen_at      timestamptz NOT NULL,
    PRIMARY KEY (subscription, member)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- A key that waits: its first ref failed, or an operator holds it (no due time).
CREATE TABLE relevo.parked_key (
    subscription    text        NOT NULL,
    lane            smallint    NOT NULL,
    key             text        NOT NULL,
    attempts        integer     NOT NULL,
    deaths          integer     NOT NULL,
    due             timestamptz,
    class           text        NOT NULL,
    error           text        NOT NULL,
    first_failed_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (subscription, lane, key)
) WITH (fillfactor = 70);

-- Events that wait behind their key, in delivery order (to_number, seq). A copy carries its own bytes; others get
-- them before their segment goes.
CREATE TABLE relevo.parked_ref (
    subscription text        NOT NULL,
    lane         smallint    NOT NULL,
    key          text        NOT NULL,
    to_number    bigint      NOT NULL,
    to_nonce     bigint      NOT NULL,
    seq          bigint      NOT NULL,
    id           uuid        NOT NULL,
    topic        text,
    event_key    text,
    headers      jsonb,
    payload      bytea,
    created_at   timestamptz,
    copy_of      bigint,
    -- An edited copy may stand at its original's place.
    PRIMARY KEY (subscription, lane, key, to_number, seq, id)
);
CREATE INDEX parked_ref_id ON relevo.parked_ref (id);
CREATE INDEX parked_ref_bare ON relevo.parked_ref (seq) WHERE payload IS NULL;

CREATE TABLE relevo.dead_letter (
    dead_letter     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription    text        NOT NULL,
    lane            smallint    NOT NULL,
    key             text        NOT NULL,
    to_number       bigint      NOT NULL,
    to_nonce        bigint      NOT NULL,
    seq             bigint      NOT NULL,
    id              uuid        NOT NULL,
    topic           text        NOT NULL,
    event_key       text,
    headers         jsonb       NOT NULL,
    payload         bytea       NOT NULL,
    created_at      timestamptz NOT NULL,
    class           text        NOT NULL,
    error           text        NOT NULL,
    attempts        integer     NOT NULL,
    first_failed_at timestamptz NOT NULL,
    died_at         timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    state           text        NOT NULL DEFAULT 'dead' CHECK (state IN ('dead', 'requested', 'replayed', 'archived')),
    copy_of         bigint
);
CREATE INDEX dead_letter_id ON relevo.dead_letter (id);
CREATE INDEX dead_letter_state ON relevo.dead_letter (subscription, state, dead_letter);

CREATE TABLE relevo.skip (
    subscription text        NOT NULL,
    id           uuid        NOT NULL,
    seq          bigint      NOT NULL,
    lane         smallint    NOT NULL,
    reason       text        NOT NULL,
    at           timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (subscription, id)
);

-- Cursors that an operator moved: where each stood, and where it went. Whole ticks, because ticks are pruned.
CREATE TABLE relevo.moved (
    move         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription text        NOT NULL,
    lane         smallint    NOT NULL,
    from_tick    jsonb       NOT NULL,
    to_tick      jsonb,
    seq          bigint      NOT NULL,
    after_tick   jsonb       NOT NULL,
    at           timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX moved_lane ON relevo.moved (subscription, lane, move);

-- A replay of many: its requests are its frozen set.
CREATE TABLE relevo.replay (
    operation bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rate      double precision,
    asked_at  timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

-- An operator's wish that only the lane's owner may carry out.
CREATE TABLE relevo.request (
    request      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription text        NOT NULL,
    lane         smallint    NOT NULL,
    key          text        NOT NULL,
    kind         text        NOT NULL CHECK (kind IN ('replay', 'release')),
    dead_letter  bigint,
    operation    bigint,
    due          timestamptz NOT NULL,
    state        text        NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'done', 'cancelled')),
    settled_at   timestamptz
);
CREATE INDEX request_waiting ON relevo.request (subscription, due, request) WHERE state = 'waiting';
CREATE INDEX request_operation ON relevo.request (operation, state);

CREATE TABLE relevo.inbox (
    consumer text        NOT NULL,
    source   text        NOT NULL,
    id       text        NOT NULL,
    seen_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (consumer, source, id)
);
CREATE INDEX inbox_seen_at ON relevo.inbox USING brin (seen_at);
