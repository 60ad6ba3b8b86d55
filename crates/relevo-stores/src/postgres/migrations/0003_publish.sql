-- Publishing and the inbox for every language that speaks SQL. Errors carry Relevo's own codes, before anything is written.

CREATE FUNCTION relevo.refuse(code text, message text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION '% %', code, message
        USING ERRCODE = 'RLV' || pg_catalog.right(code, 2), HINT = 'relevo explain ' || code;
END
$$;

CREATE FUNCTION relevo.publish_bytes(
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
    INSERT INTO relevo.outbox (id, topic, key, headers, payload)
    VALUES (coalesce(event, relevo.uuid7()), topic, key, attributes, payload)
    RETURNING outbox.id INTO event;
    RETURN event;
END
$$;

CREATE FUNCTION relevo.publish(topic text, key text, payload jsonb, headers jsonb DEFAULT '{}')
RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN relevo.publish_bytes(
        topic, key, pg_catalog.convert_to(payload::text, 'UTF8'), 'application/json', headers);
END
$$;

-- True the first time this consumer sees this event of this source; the mark lives and dies with the caller's transaction.
CREATE FUNCTION relevo.first_time(consumer text, source text, id text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    IF consumer IS NULL OR source IS NULL OR id IS NULL THEN
        PERFORM relevo.refuse('R0040', 'first_time needs a consumer, a source and an id; none may be null');
    END IF;
    INSERT INTO relevo.inbox (consumer, source, id) VALUES (consumer, source, id) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;
