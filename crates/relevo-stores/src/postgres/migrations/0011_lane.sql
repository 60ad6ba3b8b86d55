-- A generated column costs each publish a fifth of its CPU: PostgreSQL plans its expression anew for every statement. So
-- publishers tell the lane, and for a row that came without one it is computed when it is read. The column has a new name,
-- for relays of the version before would pass over such rows: like this they stand still and say why.
ALTER TABLE relevo.outbox ALTER COLUMN lane DROP EXPRESSION, ALTER COLUMN lane DROP NOT NULL;
ALTER TABLE relevo.outbox RENAME COLUMN lane TO in_lane;

-- Whoever may publish may tell the lane, whoever gave that right. (Rights on the whole table include it.)
DO $$
DECLARE
    writer oid;
BEGIN
    FOR writer IN
        SELECT DISTINCT a.grantee FROM pg_catalog.pg_attribute c, pg_catalog.aclexplode(c.attacl) a
         WHERE c.attrelid = 'relevo.outbox'::pg_catalog.regclass AND c.attname = 'payload' AND a.privilege_type = 'INSERT'
    LOOP
        EXECUTE pg_catalog.format('GRANT INSERT (in_lane) ON relevo.outbox TO %s',
            CASE writer WHEN 0 THEN 'PUBLIC' ELSE writer::pg_catalog.regrole::text END);
    END LOOP;
END
$$;

-- As before, with the lane.
CREATE OR REPLACE FUNCTION relevo.publish_bytes(
    topic        text,
    key          text,
    payload      bytea,
    content_type text  DEFAULT 'application/octet-stream',
    headers      jsonb DEFAULT '{}'
) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    wrong text;
    event uuid;
    attributes jsonb := coalesce(headers, '{}');
BEGIN
    IF payload IS NULL THEN
        PERFORM relevo.refuse('R0011', 'the payload is null');
    ELSIF pg_catalog.octet_length(payload) > 1048576 THEN
        PERFORM relevo.refuse('R0010', pg_catalog.format(
            'the payload has %s bytes, the limit is 1048576', pg_catalog.octet_length(payload)));
    END IF;
    IF topic IS NULL OR topic = '' THEN
        PERFORM relevo.refuse('R0012', 'the topic is empty');
    ELSIF pg_catalog.octet_length(topic) > 255 THEN
        PERFORM relevo.refuse('R0012', pg_catalog.format(
            'the topic has %s bytes, the limit is 255', pg_catalog.octet_length(topic)));
    ELSIF topic ~ '[*#>\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]' THEN
        PERFORM relevo.refuse('R0012', pg_catalog.format(
            'the topic %L contains white space, a control character or one of the wildcards * # >', topic));
    ELSIF topic ~ '(^|\.)(\.|$)' THEN
        PERFORM relevo.refuse('R0012', pg_catalog.format('the topic %L has an empty word', topic));
    END IF;
    IF key = '' THEN
        PERFORM relevo.refuse('R0013', 'the key is empty; pass NULL if order does not matter');
    ELSIF pg_catalog.octet_length(key) > 255 THEN
        PERFORM relevo.refuse('R0013', pg_catalog.format(
            'the key has %s bytes, the limit is 255', pg_catalog.octet_length(key)));
    ELSIF key ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        PERFORM relevo.refuse('R0013', pg_catalog.format('the key %L contains a control character', key));
    END IF;
    IF content_type IS NOT NULL AND pg_catalog.jsonb_typeof(attributes) = 'object' AND NOT attributes ? 'content-type' THEN
        attributes := attributes || pg_catalog.jsonb_build_object('content-type', content_type);
    END IF;
    wrong := relevo.headers_error(attributes);
    IF wrong IS NOT NULL THEN
        PERFORM relevo.refuse('R0014', wrong);
    END IF;
    -- The id to deduplicate by, where the publisher has one of its own.
    IF attributes ? 'id' THEN
        BEGIN
            event := (attributes->>'id')::uuid;
        EXCEPTION WHEN invalid_text_representation THEN
            PERFORM relevo.refuse('R0014', pg_catalog.format('the header id %L is not a UUID', attributes->>'id'));
        END;
        attributes := attributes - 'id';
    END IF;
    event := coalesce(event, relevo.uuid7());
    INSERT INTO relevo.outbox (in_lane, id, topic, key, headers, payload)
    VALUES (relevo.lane_of(coalesce(key, event::text)), event, topic, key, attributes, payload);
    RETURN event;
END
$$;
