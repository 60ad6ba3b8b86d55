-- The log: rows that are only ever added, in segments by seq; and ticks, the frozen points of it.

CREATE TABLE relevo.migration (
    version    bigint      PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- Programs that know the schema at least up to here go on beside this change; without one, none does.
    oldest     bigint
);

-- What the log knows of itself: `system` is the cluster its transaction ids belong to.
CREATE TABLE relevo.meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO relevo.meta (name, value)
SELECT 'system', system_identifier::text FROM pg_catalog.pg_control_system();

-- A UUID of version 7. The functions of this schema are bound when they are made (or name every schema), so
-- that a search_path of the caller's cannot change what they do.
CREATE FUNCTION relevo.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN encode(
    set_bit(set_bit(
        overlay(
            uuid_send(gen_random_uuid())
            PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
            FROM 1 FOR 6
        ), 52, 1), 53, 1), 'hex')::uuid;

-- The lane of an order key: the first 16 bits of its MD5, modulo 64; that is the low six bits of the second byte.
-- It must never change.
CREATE FUNCTION relevo.lane_of(order_key text) RETURNS smallint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (get_byte(decode(md5(order_key), 'hex'), 1) & 63)::smallint;

-- What is wrong with these headers, or NULL.
CREATE FUNCTION relevo.headers_error(headers jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    item record;
    bytes bigint := 0;
BEGIN
    IF headers IS NULL OR pg_catalog.jsonb_typeof(headers) <> 'object' THEN
        RETURN 'the headers are not a JSON object';
    END IF;
    FOR item IN SELECT h.key, h.value FROM pg_catalog.jsonb_each_text(headers) AS h LOOP
        IF item.key !~ '^[!-9;-~]+$' THEN
            RETURN pg_catalog.format('the header name %L is not made of visible ASCII characters without '':''', item.key);
        END IF;
        IF item.value ~ '[\u0001-\u0008\u000a-\u001f\u007f-\u009f]' THEN
            RETURN pg_catalog.format('the header %s has a control character in its value', item.key);
        END IF;
        bytes := bytes + pg_catalog.octet_length(item.key) + coalesce(pg_catalog.octet_length(item.value), 0);
    END LOOP;
    IF bytes > 16384 THEN
        RETURN pg_catalog.format('the headers have %s bytes together, the limit is 16384', bytes);
    END IF;
    IF headers->>'traceparent' !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-|$)' THEN
        RETURN 'traceparent is not of the W3C form 00-<32 hex>-<16 hex>-<2 hex>';
    END IF;
    RETURN NULL;
END
$$;

-- What is allowed in, also by a plain INSERT. Domains, because a session prepares their checks once; those of a table
-- are prepared anew by every statement, which doubles the cost of a publish.
CREATE DOMAIN relevo.topic AS text CONSTRAINT outbox_topic_valid CHECK (
    octet_length(VALUE) <= 255
    AND VALUE ~ '^[^.*#>\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+(\.[^.*#>\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+)*$'
);
CREATE DOMAIN relevo.key AS text CONSTRAINT outbox_key_valid CHECK (
    octet_length(VALUE) <= 255 AND VALUE ~ '^[^\u0001-\u001f\u007f-\u009f]+$'
);
CREATE DOMAIN relevo.payload AS bytea CONSTRAINT outbox_payload_fits CHECK (octet_length(VALUE) <= 1048576);
-- The first two arms say the same as the function for what headers nearly always look like, at a tenth of its cost.
CREATE DOMAIN relevo.headers AS jsonb CONSTRAINT outbox_headers_valid CHECK (
    VALUE = '{}'
    OR (octet_length(VALUE::text) <= 16384 AND NOT VALUE ? 'traceparent'
        AND VALUE::text ~ '^\{"[]!#-9;-[^-~]+": "[] !#-[^-~]*"(, "[]!#-9;-[^-~]+": "[] !#-[^-~]*")*\}$')
    OR relevo.headers_error(VALUE) IS NULL
);

CREATE SEQUENCE relevo.outbox_seq AS bigint CACHE 1;

-- xid stands before seq: defaults are computed in this order, and a writer must have its transaction id
-- before it draws its number, or a tick between the two would lose the row.
CREATE TABLE relevo.outbox (
    xid        bigint      NOT NULL DEFAULT pg_catalog.txid_current(),
    seq        bigint      NOT NULL DEFAULT pg_catalog.nextval('relevo.outbox_seq'),
    lane       smallint    NOT NULL GENERATED ALWAYS AS
               ((get_byte(decode(md5(coalesce(key, id::text)), 'hex'), 1) & 63)::smallint) STORED,
    id         uuid        NOT NULL DEFAULT relevo.uuid7(),
    topic      relevo.topic NOT NULL,
    key        relevo.key,
    headers    relevo.headers NOT NULL DEFAULT '{}',
    payload    relevo.payload NOT NULL,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT outbox_pkey PRIMARY KEY (seq)
) PARTITION BY RANGE (seq);

-- Late commits are found by xid, a single event by its id (in time order, being of version 7): both without a B-tree.
CREATE INDEX outbox_xid ON relevo.outbox USING brin (xid) WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX outbox_id ON relevo.outbox USING brin (id) WITH (pages_per_range = 32, autosummarize = on);

-- Whatever has no segment goes here, so that a daemon that stands still for a month never makes a publish fail.
CREATE TABLE relevo.outbox_default PARTITION OF relevo.outbox DEFAULT;

CREATE TABLE relevo.segment (
    name       text        PRIMARY KEY,
    from_seq   bigint      NOT NULL,
    to_seq     bigint      NOT NULL,
    made_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- Every subscription was seen to be past this row, at this time.
    passed_seq bigint,
    passed_at  timestamptz,
    emptied_at timestamptz
);
INSERT INTO relevo.segment (name, from_seq, to_seq) VALUES ('outbox_default', 0, 0);

CREATE TABLE relevo.tick (
    number     bigint      PRIMARY KEY,
    nonce      bigint      NOT NULL,
    generation bigint      NOT NULL,
    snapshot   text        NOT NULL,
    xmax_      bigint      NOT NULL,
    low        bigint      NOT NULL,
    top        bigint      NOT NULL,
    floor      bigint      NOT NULL,
    at         timestamptz NOT NULL
);
CREATE INDEX tick_floor ON relevo.tick (generation, xmax_, number) INCLUDE (low);
CREATE INDEX tick_at ON relevo.tick (at);
INSERT INTO relevo.tick VALUES (0, 0, 1, '1:1:', 1, 0, 0, 0, '-infinity');

-- The sequence's last value; one that was never called reports 1 and means 0.
CREATE FUNCTION relevo.last_seq() RETURNS bigint LANGUAGE sql VOLATILE
RETURN (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM relevo.outbox_seq);

-- This transaction's commit waits for the disk (and for synchronous standbys), or does not.
CREATE FUNCTION relevo.durable(wait boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT wait THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'off', true);
    ELSIF pg_catalog.current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;
