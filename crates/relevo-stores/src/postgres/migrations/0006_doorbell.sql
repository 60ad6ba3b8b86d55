-- The doorbell listens to this publication through a temporary slot, and takes from it only that something came.
-- Whoever may not make one polls instead.
DO $$
BEGIN
    EXECUTE 'CREATE PUBLICATION relevo_doorbell FOR TABLE relevo.outbox'
        -- From 15 on, the events' bytes need not travel.
        || CASE WHEN pg_catalog.current_setting('server_version_num')::integer >= 150000 THEN ' (seq)' ELSE '' END
        || ' WITH (publish = ''insert'', publish_via_partition_root = true)';
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'no doorbell: making a publication needs CREATE on the database';
    WHEN duplicate_object THEN
        NULL;
END
$$;
