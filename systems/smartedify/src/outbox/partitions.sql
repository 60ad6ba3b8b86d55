-- Statements to run, one each. $1: now; $2: what was published before may go. A month's partition is made before its first
-- row comes; one whose month is over for long enough goes when it is empty.
SELECT format('CREATE TABLE %I PARTITION OF outbox_events FOR VALUES FROM (%L) TO (%L)', m.name, m.month, m.month + interval '1 month')
  FROM (SELECT d AS month, 'outbox_events_' || to_char(d, 'YYYY_MM') AS name
          FROM generate_series(date_trunc('month', $1::timestamptz) + interval '1 month',
                               date_trunc('month', $1::timestamptz) + interval '2 months', interval '1 month') d) m
 WHERE to_regclass(m.name) IS NULL
UNION ALL
SELECT format('DO $do$ BEGIN IF NOT EXISTS (SELECT FROM %1$I) THEN DROP TABLE %1$I; END IF; END $do$', c.relname)
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'outbox_events'::regclass AND c.relname ~ '^outbox_events_\d{4}_\d{2}$'
   AND to_date(right(c.relname, 7), 'YYYY_MM') + interval '1 month' < $2::timestamptz
