-- Consuming from a broker: what was met, and which keys wait in the consumer's own log.

-- The last event of a key that landed in the log of `consumer`. The key waits until the consumer's subscription has
-- decided it: its cursor is past the row, and the key is not parked.
CREATE TABLE relevo.inbox_key (
    consumer   text     NOT NULL,
    key        text     NOT NULL,
    lane       smallint NOT NULL,
    generation bigint   NOT NULL,
    xid        bigint   NOT NULL,
    seq        bigint   NOT NULL,
    PRIMARY KEY (consumer, key)
) WITH (fillfactor = 70);

-- Notes the messages, and answers for each in its place: 0 seen before, 1 new, 2 new while its key waits.
-- Rows are noted in the order of their ids, so that two consumers of the same messages wait and do not deadlock.
CREATE FUNCTION relevo.meet(consumer text, sources text[], ids text[], keys text[])
RETURNS smallint[] LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    fresh  boolean[];
    answer smallint[];
BEGIN
    WITH asked AS (
        SELECT * FROM ROWS FROM (pg_catalog.unnest(sources), pg_catalog.unnest(ids))
                      WITH ORDINALITY AS a (source, id, place)
    ), noted AS (
        INSERT INTO relevo.inbox (consumer, source, id)
        SELECT consumer, a.source, a.id FROM asked a GROUP BY a.source, a.id ORDER BY a.source, a.id
        ON CONFLICT DO NOTHING
        RETURNING inbox.source, inbox.id
    ), told AS (
        -- The same message twice in one batch: the second was seen.
        SELECT a.place, n.id IS NOT NULL AND a.place = pg_catalog.min(a.place) OVER (PARTITION BY a.source, a.id) AS fresh
          FROM asked a
          LEFT JOIN noted n ON n.source = a.source AND n.id = a.id
    )
    SELECT pg_catalog.array_agg(t.fresh ORDER BY t.place) INTO fresh FROM told t;
    -- A statement of its own, which sees what has happened since: noting may have waited for another consumer, which
    -- landed something of these keys.
    SELECT pg_catalog.array_agg(CASE WHEN NOT a.fresh THEN 0 WHEN w.key IS NULL THEN 1 ELSE 2 END::smallint ORDER BY a.place)
      INTO answer
      FROM ROWS FROM (pg_catalog.unnest(fresh), pg_catalog.unnest(keys)) WITH ORDINALITY AS a (fresh, key, place)
      LEFT JOIN (SELECT k.key FROM relevo.inbox_key k
                  WHERE k.consumer = consumer AND k.key = ANY (keys) AND relevo.key_waits(k)) w ON w.key = a.key;
    RETURN coalesce(answer, '{}');
END
$$;

-- Does the consumer's subscription still have something of this key to decide? In doubt it does: what comes then
-- lands behind, and is worked in its turn.
CREATE FUNCTION relevo.key_waits(k relevo.inbox_key) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (SELECT FROM relevo.parked_key p WHERE p.subscription = k.consumer AND p.lane = k.lane AND p.key = k.key)
    OR NOT EXISTS (
        SELECT FROM relevo.cursor c
          JOIN relevo.tick t ON t.number = c.from_number AND t.nonce = c.from_nonce
         WHERE c.subscription = k.consumer AND c.lane = k.lane AND k.seq <= t.top
           AND CASE WHEN t.generation = k.generation
                    THEN pg_catalog.txid_visible_in_snapshot(k.xid, t.snapshot::text::txid_snapshot)
                    ELSE t.generation > k.generation END);

-- Remembers that these keys have events of this transaction in the log.
CREATE FUNCTION relevo.keys_landed(consumer text, keys text[]) RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO relevo.inbox_key AS k (consumer, key, lane, generation, xid, seq)
    SELECT consumer, landed.key, relevo.lane_of(landed.key), (SELECT pg_catalog.max(t.generation) FROM relevo.tick t),
           pg_catalog.txid_current(), (SELECT s.last_value FROM relevo.outbox_seq s)
      FROM (SELECT DISTINCT l.key FROM pg_catalog.unnest(keys) AS l (key) ORDER BY l.key) AS landed
    ON CONFLICT (consumer, key) DO UPDATE
       SET generation = excluded.generation, xid = excluded.xid, seq = excluded.seq
$$;
