-- What needs the tables' owner, for a relay role that is not: segments, summaries, moving to another cluster.
-- Each waits for a lock for a moment only, so that no writer waits long behind it.

-- Held by whoever moves cursors to other ticks, prunes ticks or empties segments.
CREATE FUNCTION relevo.lock_history() RETURNS void LANGUAGE sql VOLATILE
RETURN (SELECT pg_advisory_xact_lock(7165061, 1));

-- Numbers that the log jumped over: they are no events. From the first, exclusive, to the last.
CREATE TABLE relevo.jump (
    from_seq bigint      PRIMARY KEY,
    to_seq   bigint      NOT NULL,
    at       timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

-- At most so many events have above < seq <= up_to.
CREATE FUNCTION relevo.events_between(above bigint, up_to bigint) RETURNS bigint LANGUAGE sql STABLE
RETURN greatest(up_to - above, 0) - (
    SELECT coalesce(sum(greatest(least(j.to_seq, up_to) - greatest(j.from_seq, above), 0)), 0)::bigint FROM relevo.jump j);

-- True while the next number has no segment of its own.
CREATE FUNCTION relevo.is_in_default() RETURNS boolean LANGUAGE sql VOLATILE
RETURN NOT EXISTS (SELECT FROM relevo.segment s, relevo.last_seq() AS l (seq)
                    WHERE s.name <> 'outbox_default' AND l.seq + 1 >= s.from_seq AND l.seq + 1 < s.to_seq);

-- Attaches a segment. Where a default segment with rows has no constraint that rules the segment's own out, PostgreSQL
-- looks through all of it first, and whoever writes into it waits.
CREATE FUNCTION relevo.attach_segment(start bigint, rows bigint) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    segment_name text := 'outbox_' || start;
BEGIN
    EXECUTE pg_catalog.format('CREATE TABLE relevo.%I (LIKE relevo.outbox INCLUDING ALL)', segment_name);
    EXECUTE pg_catalog.format('ALTER TABLE relevo.outbox ATTACH PARTITION relevo.%I FOR VALUES FROM (%s) TO (%s)',
        segment_name, start, start + rows);
    INSERT INTO relevo.segment (name, from_seq, to_seq) VALUES (segment_name, start, start + rows);
    RETURN segment_name;
END
$$;
REVOKE ALL ON FUNCTION relevo.attach_segment(bigint, bigint) FROM PUBLIC;

-- Adds a segment behind the last; NULL once the log has run past that, into the default segment: see guard_default.
CREATE FUNCTION relevo.make_segment(rows bigint) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    last_end bigint;
BEGIN
    IF rows IS NULL OR rows < 1 THEN
        PERFORM relevo.refuse('R0040', 'a segment needs at least one row');
    END IF;
    PERFORM pg_advisory_xact_lock(7165061, 2);
    SELECT coalesce(max(to_seq), 1) INTO last_end FROM relevo.segment WHERE name <> 'outbox_default';
    IF relevo.last_seq() >= last_end THEN
        RETURN NULL;
    END IF;
    RETURN relevo.attach_segment(last_end, rows);
END
$$;

-- A log that ran into its default segment leaves it in four steps, each short or in nobody's way:
-- 1. guard_default: from a number far ahead on, the default segment takes no rows (checked for new ones only);
-- 2. check_default_guard: the rows it has are looked through, beside readers and writers;
-- 3. make_segments_beyond_guard: segments from that number on need no further look; the guard goes with the last;
-- 4. jump_to_segments: the sequence goes on with the first number of them.
-- Whoever dies in between leaves a guard that no writer reaches within months: it lies ten thousand million ahead.
CREATE FUNCTION relevo.guard_default() RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    start bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(7165061, 2);
    IF NOT relevo.is_in_default() OR EXISTS (SELECT FROM relevo.segment WHERE from_seq > relevo.last_seq()) THEN
        RETURN false;
    END IF;
    SELECT value::bigint INTO start FROM relevo.meta WHERE name = 'guarded_from';
    IF start IS NOT NULL AND start - relevo.last_seq() > 5000000000 THEN
        RETURN true;
    END IF;
    start := relevo.last_seq() + 10000000000;
    ALTER TABLE relevo.outbox_default DROP CONSTRAINT IF EXISTS outbox_default_guard;
    EXECUTE format('ALTER TABLE relevo.outbox_default ADD CONSTRAINT outbox_default_guard CHECK (seq < %s) NOT VALID', start);
    INSERT INTO relevo.meta (name, value) VALUES ('guarded_from', start::text)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    RETURN true;
END
$$;

CREATE FUNCTION relevo.check_default_guard() RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
BEGIN
    ALTER TABLE relevo.outbox_default VALIDATE CONSTRAINT outbox_default_guard;
END
$$;

CREATE FUNCTION relevo.make_segments_beyond_guard(rows bigint, count integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    start bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(7165061, 2);
    SELECT m.value::bigint INTO start FROM relevo.meta m
      JOIN pg_constraint c ON c.conrelid = 'relevo.outbox_default'::regclass AND c.conname = 'outbox_default_guard' AND c.convalidated
     WHERE m.name = 'guarded_from';
    IF start IS NULL THEN
        RETURN 0;
    END IF;
    FOR i IN 0 .. count - 1 LOOP
        PERFORM relevo.attach_segment(start + i * rows, rows);
    END LOOP;
    ALTER TABLE relevo.outbox_default DROP CONSTRAINT outbox_default_guard;
    DELETE FROM relevo.meta WHERE name = 'guarded_from';
    RETURN count;
END
$$;

CREATE FUNCTION relevo.jump_to_segments() RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    here bigint;
    next_segment bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(7165061, 2);
    IF NOT relevo.is_in_default() THEN
        RETURN false;
    END IF;
    here := relevo.last_seq();
    SELECT min(from_seq) INTO next_segment FROM relevo.segment WHERE from_seq > here;
    -- Writers go on drawing numbers: only far ahead of them is ahead of them for certain.
    IF next_segment IS NULL OR next_segment - here < 1000000000 THEN
        RETURN false;
    END IF;
    INSERT INTO relevo.jump (from_seq, to_seq) VALUES (here + 100000, next_segment - 1);
    PERFORM setval('relevo.outbox_seq', next_segment - 1);
    RETURN true;
END
$$;

-- The highest seq of which every row up to it is decided by every subscription; NULL while there is none to say so.
CREATE FUNCTION relevo.floor_of_all() RETURNS bigint LANGUAGE sql STABLE
RETURN (SELECT CASE WHEN count(*) = count(t.number) THEN min(t.floor) END
          FROM relevo.cursor c LEFT JOIN relevo.tick t ON t.number = c.from_number AND t.nonce = c.from_nonce);

-- Empties a segment, if every subscription is past every row of it and nothing else needs its bytes.
CREATE FUNCTION relevo.empty_segment(segment_name text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    newest bigint;
    newest_at timestamptz;
    needed boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM relevo.segment WHERE name = segment_name) THEN
        PERFORM relevo.refuse('R0040', format('there is no segment %s', segment_name));
    END IF;
    PERFORM relevo.lock_history();
    -- Nobody has an undecided row in a table that can be locked so.
    EXECUTE format('LOCK TABLE relevo.%I IN ACCESS EXCLUSIVE MODE', segment_name);
    EXECUTE format('SELECT seq, created_at FROM relevo.%I ORDER BY seq DESC LIMIT 1', segment_name) INTO newest, newest_at;
    IF newest IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM relevo.parked_ref r JOIN relevo.%I o ON o.seq = r.seq WHERE r.payload IS NULL)',
        segment_name) INTO needed;
    IF needed OR newest > coalesce(relevo.floor_of_all(), -1) THEN
        RETURN false;
    END IF;
    EXECUTE format('TRUNCATE relevo.%I', segment_name);
    UPDATE relevo.segment SET emptied_at = clock_timestamp(), passed_at = NULL, passed_seq = NULL WHERE name = segment_name;
    INSERT INTO relevo.meta AS m (name, value) VALUES ('emptied_to_time', newest_at::text)
    ON CONFLICT (name) DO UPDATE SET value = greatest(m.value::timestamptz, excluded.value::timestamptz)::text;
    INSERT INTO relevo.meta AS m (name, value) VALUES ('emptied_to_seq', newest::text)
    ON CONFLICT (name) DO UPDATE SET value = greatest(m.value::bigint, excluded.value::bigint)::text;
    RETURN true;
END
$$;

-- Drops an emptied segment that can never get a row again.
CREATE FUNCTION relevo.drop_segment(segment_name text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    has_rows boolean;
BEGIN
    PERFORM relevo.lock_history();
    IF NOT EXISTS (
        SELECT FROM relevo.segment
         WHERE name = segment_name AND name <> 'outbox_default' AND emptied_at IS NOT NULL
           AND to_seq - 1 <= coalesce(relevo.floor_of_all(), -1)
    ) THEN
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE relevo.%I IN ACCESS EXCLUSIVE MODE', segment_name);
    EXECUTE format('SELECT EXISTS (SELECT FROM relevo.%I)', segment_name) INTO has_rows;
    IF has_rows THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE relevo.%I', segment_name);
    DELETE FROM relevo.segment WHERE name = segment_name;
    RETURN true;
END
$$;

-- The segments with their newest rows and sizes.
CREATE FUNCTION relevo.segments() RETURNS TABLE (
    segment_name text, from_seq bigint, to_seq bigint, last_row bigint, bytes bigint, row_estimate bigint, settled boolean,
    emptied_for double precision
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    s relevo.segment;
    newest bigint;
BEGIN
    FOR s IN SELECT * FROM relevo.segment ORDER BY segment.from_seq LOOP
        CONTINUE WHEN to_regclass(format('relevo.%I', s.name)) IS NULL;
        EXECUTE format('SELECT max(seq) FROM relevo.%I', s.name) INTO newest;
        RETURN QUERY SELECT s.name, s.from_seq, s.to_seq, newest,
            pg_total_relation_size(format('relevo.%I', s.name)::regclass),
            (SELECT greatest(c.reltuples, 0)::bigint FROM pg_class c WHERE c.oid = format('relevo.%I', s.name)::regclass),
            s.passed_seq IS NOT DISTINCT FROM newest AND newest IS NOT NULL,
            extract(epoch FROM clock_timestamp() - s.emptied_at)::float8;
    END LOOP;
END
$$;

-- Late commits are looked for by BRIN, which is blind to pages that were not summarised yet.
CREATE FUNCTION relevo.summarize(above bigint) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    segment_index regclass;
    pages integer := 0;
BEGIN
    FOR segment_index IN
        SELECT i.indexrelid::regclass
          FROM relevo.segment s
          JOIN pg_class c ON c.oid = to_regclass(format('relevo.%I', s.name))
          JOIN pg_index i ON i.indrelid = c.oid
          JOIN pg_class x ON x.oid = i.indexrelid
          JOIN pg_am a ON a.oid = x.relam AND a.amname = 'brin'
         WHERE (s.to_seq > above AND s.from_seq <= relevo.last_seq()) OR s.name = 'outbox_default'
    LOOP
        pages := pages + brin_summarize_new_values(segment_index);
    END LOOP;
    RETURN pages;
END
$$;

-- The log was restored into another cluster, whose transaction ids mean something else: a new generation begins
-- with a tick under a lock that no writer's row can straddle. Answers with that tick, or NULL if nothing moved.
CREATE FUNCTION relevo.rebase(fresh_nonce bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    here text;
    newest relevo.tick;
    last_ bigint;
    frozen txid_snapshot;
BEGIN
    SELECT system_identifier::text INTO here FROM pg_control_system();
    -- Nearly always nothing moved: then nobody waits.
    IF here = (SELECT value FROM relevo.meta WHERE name = 'system') THEN
        RETURN NULL;
    END IF;
    PERFORM relevo.lock_history();
    IF here = (SELECT value FROM relevo.meta WHERE name = 'system') THEN
        RETURN NULL;
    END IF;
    LOCK TABLE relevo.outbox IN SHARE MODE;
    SELECT * INTO newest FROM relevo.tick ORDER BY number DESC LIMIT 1;
    last_ := relevo.last_seq();
    IF last_ < newest.top THEN
        PERFORM relevo.refuse('R0018', format(
            'tick %s has seen seq %s, but the sequence of this cluster stands at %s', newest.number, newest.top, last_));
    END IF;
    frozen := txid_current_snapshot();
    INSERT INTO relevo.tick VALUES (newest.number + 1, fresh_nonce, newest.generation + 1, frozen::text,
        txid_snapshot_xmax(frozen), last_, last_, last_, greatest(newest.at, clock_timestamp()));
    UPDATE relevo.meta SET value = here WHERE name = 'system';
    RETURN newest.number + 1;
END
$$;
REVOKE ALL ON FUNCTION relevo.make_segment(bigint), relevo.guard_default(), relevo.check_default_guard(),
    relevo.make_segments_beyond_guard(bigint, integer), relevo.jump_to_segments(), relevo.empty_segment(text),
    relevo.drop_segment(text), relevo.summarize(bigint), relevo.segments(), relevo.rebase(bigint) FROM PUBLIC;
