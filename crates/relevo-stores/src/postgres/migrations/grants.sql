-- Roles: a writer publishes, a relay works the log. Neither owns the tables. Rename them as you like.
-- CREATE ROLE relevo_writer NOLOGIN;
-- CREATE ROLE relevo_relay NOLOGIN;

GRANT USAGE ON SCHEMA relevo TO relevo_writer, relevo_relay;

-- By column, without xid and seq: nobody may choose an event's place in the log.
GRANT INSERT (in_lane, id, topic, key, headers, payload) ON relevo.outbox TO relevo_writer, relevo_relay;
-- RETURNING id, and nothing of others' events.
GRANT SELECT (id) ON relevo.outbox TO relevo_writer;
-- What is taken over from a table of somebody else's keeps its time.
GRANT INSERT (created_at) ON relevo.outbox TO relevo_relay;
GRANT USAGE ON SEQUENCE relevo.outbox_seq TO relevo_writer, relevo_relay;
GRANT INSERT ON relevo.inbox TO relevo_writer, relevo_relay;

GRANT SELECT ON relevo.outbox, relevo.outbox_seq, relevo.migration, relevo.jump TO relevo_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON relevo.tick, relevo.subscription, relevo.cursor, relevo.member, relevo.segment, relevo.meta,
    relevo.parked_key, relevo.parked_ref, relevo.dead_letter, relevo.skip, relevo.moved, relevo.replay, relevo.request, relevo.inbox, relevo.inbox_key,
    relevo.inbox_horizon, relevo.adopted, relevo.claim
    TO relevo_relay;
GRANT EXECUTE ON FUNCTION relevo.make_segment(bigint), relevo.guard_default(), relevo.check_default_guard(),
    relevo.make_segments_beyond_guard(bigint, integer), relevo.jump_to_segments(), relevo.empty_segment(text),
    relevo.drop_segment(text), relevo.summarize(bigint), relevo.segments(), relevo.rebase(bigint) TO relevo_relay;

-- Comfort, not needed to work: `relevo why` shows other sessions' queries, and the doorbell may open.
-- GRANT pg_read_all_stats TO relevo_relay;
-- ALTER ROLE relevo_relay REPLICATION;
