-- The log. Rows are only ever added, and removed by retention; nothing updates them.
-- AUTOINCREMENT: without it SQLite gives the numbers of deleted rows again, and cursors that are past
-- them would never see the new rows.
-- The defaults and checks serve whoever writes by plain SQL, also with an SQLite as old as 3.38:
--   INSERT INTO relevo_outbox (topic, key, payload) VALUES ('ticket.created', 't-1', '{"n":1}');
CREATE TABLE relevo_outbox (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    -- A UUIDv7 made of the time in milliseconds and random bits.
    id         TEXT NOT NULL DEFAULT (lower(
        substr(printf('%012x', CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)), 1, 8) || '-' ||
        substr(printf('%012x', CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)), 9, 4) || '-7' ||
        substr(hex(randomblob(2)), 2) || '-' ||
        substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || '-' ||
        hex(randomblob(6)))),
    topic      TEXT NOT NULL,
    key        TEXT,
    headers    TEXT NOT NULL DEFAULT '{}',
    payload    BLOB NOT NULL,
    -- Milliseconds since 1970, by SQLite's clock.
    created_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)),
    CONSTRAINT relevo_invalid_id CHECK (
        typeof(id) = 'text' AND length(id) = 36
        AND substr(id, 9, 1) = '-' AND substr(id, 14, 1) = '-' AND substr(id, 19, 1) = '-' AND substr(id, 24, 1) = '-'
        AND length(replace(id, '-', '')) = 32 AND replace(id, '-', '') NOT GLOB '*[^0-9a-f]*'),
    -- Words parted by single dots, without white space, control characters and wildcards.
    CONSTRAINT relevo_invalid_topic CHECK (
        typeof(topic) = 'text' AND length(CAST(topic AS BLOB)) BETWEEN 1 AND 255
        AND instr('.' || topic || '.', '..') = 0 AND instr(topic, char(0)) = 0
        AND topic NOT GLOB '*[' || char(1) || '-' || char(32) || '*#>' || char(127) || '-' || char(160) || char(5760)
            || char(8192) || '-' || char(8202) || char(8232, 8233, 8239, 8287, 12288) || ']*'),
    CONSTRAINT relevo_invalid_key CHECK (
        key IS NULL OR (
            typeof(key) = 'text' AND length(CAST(key AS BLOB)) BETWEEN 1 AND 255 AND instr(key, char(0)) = 0
            AND key NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')),
    CONSTRAINT relevo_invalid_headers CHECK (
        typeof(headers) = 'text' AND json_valid(headers) AND json_type(headers) = 'object'),
    CONSTRAINT relevo_payload_too_large CHECK (length(CAST(payload AS BLOB)) <= 1048576),
    CONSTRAINT relevo_invalid_created_at CHECK (typeof(created_at) = 'integer')
);
CREATE INDEX relevo_outbox_id ON relevo_outbox (id);

-- A number given by hand below the log's end would lie behind every cursor and never be delivered.
-- (SQLite writes sqlite_sequence at the end of a statement, so here it still holds the number before it.)
CREATE TRIGGER relevo_outbox_order AFTER INSERT ON relevo_outbox
WHEN NEW.seq <= COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'relevo_outbox'), 0)
BEGIN
    SELECT RAISE(ABORT, 'relevo_invalid_seq: the log gives seq itself, leave it out');
END;

CREATE TRIGGER relevo_outbox_headers AFTER INSERT ON relevo_outbox
WHEN length(CAST(NEW.headers AS BLOB)) > 16384
BEGIN
    SELECT RAISE(ABORT, 'relevo_invalid_headers: names and values have more than 16384 bytes together')
    WHERE (SELECT total(length(CAST(key AS BLOB)) + length(CAST(value AS BLOB))) FROM json_each(NEW.headers)) > 16384;
END;

CREATE TRIGGER relevo_outbox_append_only BEFORE UPDATE ON relevo_outbox
BEGIN
    SELECT RAISE(ABORT, 'relevo_append_only: events are never changed');
END;

-- "All up to number had committed at this time": what a start at a time goes by.
CREATE TABLE relevo_tick (
    number INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL
);

-- How far every subscription was at that time: what was passed long enough ago may go.
CREATE TABLE relevo_passed (
    at  INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL
);

-- Which messages a consumer has seen, for effects outside a relay.
CREATE TABLE relevo_inbox (
    consumer TEXT NOT NULL,
    source   TEXT NOT NULL,
    id       TEXT NOT NULL,
    first_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)),
    PRIMARY KEY (consumer, source, id)
) WITHOUT ROWID;
CREATE INDEX relevo_inbox_first_at ON relevo_inbox (first_at);

-- Facts about the log as a whole, such as how far retention has come.
CREATE TABLE relevo_fact (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
