-- One lane transaction. `change` is a lane's whole change as JSON; everything in it is written, then the fence is
-- the last statement: unless exactly one cursor row still stands where the owner left it, all of it fails.

CREATE FUNCTION relevo.stale(what text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'R0023 %', what USING ERRCODE = 'RLV23', HINT = 'relevo explain R0023';
END
$$;

-- Dead letters get their bytes from the ref that waited, or from the log.
CREATE FUNCTION relevo.record_deaths(s text, l smallint, deaths jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    written bigint;
BEGIN
    INSERT INTO relevo.dead_letter
        (subscription, lane, key, to_number, to_nonce, seq, id, topic, event_key, headers, payload, created_at,
         class, error, attempts, first_failed_at, copy_of)
    SELECT s, l, d.key, d.to_number, d.to_nonce, d.seq, d.id,
           coalesce(r.topic, o.topic),
           CASE WHEN r.payload IS NULL THEN o.key ELSE r.event_key END,
           coalesce(r.headers, o.headers), coalesce(r.payload, o.payload), coalesce(r.created_at, o.created_at),
           d.class, d.error, d.attempts, coalesce(k.first_failed_at, pg_catalog.clock_timestamp()), r.copy_of
      FROM pg_catalog.jsonb_to_recordset(deaths) AS d
           (key text, to_number bigint, to_nonce bigint, seq bigint, id uuid, class text, error text, attempts integer)
      LEFT JOIN relevo.parked_ref r ON r.subscription = s AND r.lane = l AND r.key = d.key
            AND r.to_number = d.to_number AND r.seq = d.seq AND r.id = d.id
      LEFT JOIN relevo.parked_key k ON k.subscription = s AND k.lane = l AND k.key = d.key AND r.seq IS NOT NULL
      LEFT JOIN LATERAL (SELECT * FROM relevo.outbox x WHERE x.seq = d.seq AND r.payload IS NULL) o ON true
     WHERE coalesce(r.payload, o.payload) IS NOT NULL;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> pg_catalog.jsonb_array_length(deaths) THEN
        PERFORM relevo.stale('the bytes of a dead letter are neither parked nor in the log');
    END IF;
END
$$;

CREATE FUNCTION relevo.record_refs(s text, l smallint, settled jsonb, waiting jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM relevo.parked_ref r
     USING pg_catalog.jsonb_to_recordset(settled) AS e (key text, to_number bigint, seq bigint, id uuid)
     WHERE r.subscription = s AND r.lane = l AND r.key = e.key AND r.to_number = e.to_number AND r.seq = e.seq AND r.id = e.id;
    GET DIAGNOSTICS gone = ROW_COUNT;
    IF gone <> pg_catalog.jsonb_array_length(settled) THEN
        PERFORM relevo.stale('an event that was parked is parked no more');
    END IF;
    INSERT INTO relevo.parked_ref (subscription, lane, key, to_number, to_nonce, seq, id)
    SELECT s, l, e.key, e.to_number, e.to_nonce, e.seq, e.id
      FROM pg_catalog.jsonb_to_recordset(waiting) AS e (key text, to_number bigint, to_nonce bigint, seq bigint, id uuid);
END
$$;

CREATE FUNCTION relevo.record_keys(s text, l smallint, parked jsonb, unparked jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_ timestamptz := pg_catalog.clock_timestamp();
BEGIN
    INSERT INTO relevo.parked_key AS k (subscription, lane, key, attempts, deaths, due, class, error, first_failed_at)
    SELECT s, l, p.key, p.attempts, p.deaths, now_ + pg_catalog.make_interval(secs => p.retry_in), p.class, p.error, now_
      FROM pg_catalog.jsonb_to_recordset(parked) AS p
           (key text, attempts integer, deaths integer, retry_in double precision, class text, error text)
    ON CONFLICT (subscription, lane, key) DO UPDATE
       SET attempts = excluded.attempts, deaths = excluded.deaths, due = excluded.due,
           class = excluded.class, error = excluded.error,
           -- It tells of the key's first event: another one begins anew.
           first_failed_at = CASE WHEN excluded.attempts > 1 THEN k.first_failed_at ELSE excluded.first_failed_at END;
    DELETE FROM relevo.parked_key k
     USING pg_catalog.jsonb_array_elements_text(unparked) AS u (key)
     WHERE k.subscription = s AND k.lane = l AND k.key = u.key;
    IF EXISTS (
        SELECT FROM relevo.parked_ref r JOIN pg_catalog.jsonb_array_elements_text(unparked) AS u (key) ON r.key = u.key
         WHERE r.subscription = s AND r.lane = l
    ) THEN
        PERFORM relevo.stale('events still wait behind a key that was to be released');
    END IF;
END
$$;

-- A replayed dead letter becomes a ref at its old place, with its own bytes, and its key is due at once. A request
-- that was cancelled meanwhile is passed over.
CREATE FUNCTION relevo.record_requests(s text, l smallint, requests jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    wish record;
    now_ timestamptz := pg_catalog.clock_timestamp();
BEGIN
    FOR wish IN
        UPDATE relevo.request q SET state = 'done', settled_at = now_
          FROM pg_catalog.jsonb_array_elements_text(requests) AS a (request)
         WHERE q.request = a.request::bigint AND q.subscription = s AND q.lane = l AND q.state = 'waiting'
        RETURNING q.key, q.kind, q.dead_letter
    LOOP
        IF wish.kind = 'release' THEN
            UPDATE relevo.parked_key k SET due = now_ WHERE k.subscription = s AND k.lane = l AND k.key = wish.key AND k.due IS NULL;
            CONTINUE;
        END IF;
        INSERT INTO relevo.parked_ref
            (subscription, lane, key, to_number, to_nonce, seq, id, topic, event_key, headers, payload, created_at, copy_of)
        SELECT s, l, d.key, d.to_number, d.to_nonce, d.seq, d.id, d.topic, d.event_key, d.headers, d.payload, d.created_at, d.copy_of
          FROM relevo.dead_letter d WHERE d.dead_letter = wish.dead_letter AND d.state = 'requested'
        ON CONFLICT DO NOTHING;
        UPDATE relevo.dead_letter d SET state = 'replayed' WHERE d.dead_letter = wish.dead_letter AND d.state = 'requested';
        INSERT INTO relevo.parked_key (subscription, lane, key, attempts, deaths, due, class, error)
        VALUES (s, l, wish.key, 0, 0, now_, 'transient', 'dead letter ' || wish.dead_letter || ' is replayed')
        ON CONFLICT (subscription, lane, key) DO UPDATE SET attempts = 0, deaths = 0, due = excluded.due;
    END LOOP;
END
$$;

-- Held by every record of a subscription, shared, and alone by whoever moves its cursors or ends it.
CREATE FUNCTION relevo.lock_records(s text, alone boolean) RETURNS void LANGUAGE sql VOLATILE
RETURN (SELECT CASE WHEN alone THEN pg_advisory_xact_lock(7165062, hashtext(s))
                    ELSE pg_advisory_xact_lock_shared(7165062, hashtext(s)) END);

-- Everything of a change but the fence.
CREATE FUNCTION relevo.record_rows(change jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    s text := change->>'subscription';
    l smallint := (change->>'lane')::smallint;
BEGIN
    -- Operators who move or end the subscription wait for this, and this for them: they take rows in another order.
    PERFORM relevo.lock_records(s, false);
    IF change ? 'deaths' THEN
        PERFORM relevo.record_deaths(s, l, change->'deaths');
    END IF;
    IF change ? 'skips' THEN
        INSERT INTO relevo.skip AS k (subscription, id, seq, lane, reason)
        SELECT s, e.id, e.seq, l, e.reason
          FROM pg_catalog.jsonb_to_recordset(change->'skips') AS e (id uuid, seq bigint, reason text)
        ON CONFLICT (subscription, id) DO UPDATE SET reason = excluded.reason, at = excluded.at;
    END IF;
    IF change ? 'settled' OR change ? 'waiting' THEN
        PERFORM relevo.record_refs(s, l, coalesce(change->'settled', '[]'), coalesce(change->'waiting', '[]'));
    END IF;
    IF change ? 'parked' OR change ? 'unparked' THEN
        PERFORM relevo.record_keys(s, l, coalesce(change->'parked', '[]'), coalesce(change->'unparked', '[]'));
    END IF;
    IF change ? 'replayed' THEN
        PERFORM relevo.record_requests(s, l, change->'replayed');
    END IF;
END
$$;

-- Ticks are named with their nonces: a number alone may have been given out again after a crash.
CREATE FUNCTION relevo.fence(change jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    matched bigint;
BEGIN
    UPDATE relevo.cursor c
       SET from_number = a.from_number, from_nonce = a.from_nonce, to_number = a.to_number, to_nonce = a.to_nonce,
           seq = a.seq, delivered = c.delivered + coalesce((change->>'delivered')::bigint, 0),
           moved_at = pg_catalog.clock_timestamp()
      FROM pg_catalog.jsonb_to_record(change->'before') AS b
           (from_number bigint, from_nonce bigint, to_number bigint, to_nonce bigint, seq bigint),
           pg_catalog.jsonb_to_record(change->'after') AS a
           (from_number bigint, from_nonce bigint, to_number bigint, to_nonce bigint, seq bigint)
     WHERE c.subscription = change->>'subscription' AND c.lane = (change->>'lane')::smallint
       AND c.token = (change->>'token')::bigint
       AND c.from_number = b.from_number AND c.from_nonce = b.from_nonce
       AND c.to_number IS NOT DISTINCT FROM b.to_number AND c.to_nonce IS NOT DISTINCT FROM b.to_nonce
       AND c.seq = b.seq
       AND EXISTS (SELECT FROM relevo.tick t WHERE t.number = a.from_number AND t.nonce = a.from_nonce)
       AND (a.to_number IS NULL
            OR EXISTS (SELECT FROM relevo.tick t WHERE t.number = a.to_number AND t.nonce = a.to_nonce));
    GET DIAGNOSTICS matched = ROW_COUNT;
    IF matched <> 1 THEN
        PERFORM relevo.stale(pg_catalog.format('lane %s of %s is not where its owner left it',
            change->>'lane', change->>'subscription'));
    END IF;
END
$$;

-- One lane's change, as the last statement of a handler's transaction.
CREATE FUNCTION relevo.record(change jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM relevo.record_rows(change);
    PERFORM relevo.fence(change);
END
$$;

-- Changes of several lanes, all or nothing; every fence comes after every row, in the order of the lanes.
CREATE FUNCTION relevo.record_all(changes jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    change jsonb;
BEGIN
    PERFORM relevo.durable(true);
    FOR change IN SELECT c FROM pg_catalog.jsonb_array_elements(changes) AS c LOOP
        PERFORM relevo.record_rows(change);
    END LOOP;
    FOR change IN SELECT c FROM pg_catalog.jsonb_array_elements(changes) AS c
                  ORDER BY c->>'subscription', (c->>'lane')::smallint LOOP
        PERFORM relevo.fence(change);
    END LOOP;
END
$$;

-- Cursors of several lanes that only move, all or nothing: one statement however many they are. A cursor that is lost
-- in a crash only brings copies, so nobody waits for the disk.
CREATE FUNCTION relevo.move_all(s text, lanes smallint[], tokens bigint[], delivered bigint[],
    before_from bigint[], before_from_nonce bigint[], before_to bigint[], before_to_nonce bigint[], before_seq bigint[],
    after_from bigint[], after_from_nonce bigint[], after_to bigint[], after_to_nonce bigint[], after_seq bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    matched bigint;
BEGIN
    PERFORM relevo.durable(false);
    PERFORM relevo.lock_records(s, false);
    UPDATE relevo.cursor c
       SET from_number = m.af, from_nonce = m.afn, to_number = m.at, to_nonce = m.atn, seq = m.aseq,
           delivered = c.delivered + m.d, moved_at = pg_catalog.clock_timestamp()
      FROM unnest(lanes, tokens, move_all.delivered, before_from, before_from_nonce, before_to, before_to_nonce, before_seq,
                  after_from, after_from_nonce, after_to, after_to_nonce, after_seq)
           AS m (lane, token, d, bf, bfn, bt, btn, bseq, af, afn, at, atn, aseq)
     WHERE c.subscription = s AND c.lane = m.lane AND c.token = m.token
       AND c.from_number = m.bf AND c.from_nonce = m.bfn AND c.seq = m.bseq
       AND c.to_number IS NOT DISTINCT FROM m.bt AND c.to_nonce IS NOT DISTINCT FROM m.btn
       AND EXISTS (SELECT FROM relevo.tick t WHERE t.number = m.af AND t.nonce = m.afn)
       AND (m.at IS NULL OR EXISTS (SELECT FROM relevo.tick t WHERE t.number = m.at AND t.nonce = m.atn));
    GET DIAGNOSTICS matched = ROW_COUNT;
    IF matched <> pg_catalog.cardinality(lanes) THEN
        PERFORM relevo.stale(pg_catalog.format('of %s lanes of %s only %s are where their owner left them',
            pg_catalog.cardinality(lanes), s, matched));
    END IF;
END
$$;
