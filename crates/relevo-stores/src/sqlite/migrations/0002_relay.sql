CREATE TABLE relevo_subscription (
    name        TEXT PRIMARY KEY,
    topics      TEXT NOT NULL,
    after_dead  TEXT NOT NULL,
    destination TEXT NOT NULL,
    -- Everything up to this number lies before its start.
    start_seq   INTEGER NOT NULL,
    -- Who paused it, when and why.
    paused      TEXT,
    created_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How far each lane is decided, and under whose token. (from_number, NULL, 0): everything up to from_number;
-- while a window is open, its rows up to seq too.
CREATE TABLE relevo_cursor (
    subscription TEXT NOT NULL,
    lane         INTEGER NOT NULL,
    owner        TEXT,
    token        INTEGER NOT NULL,
    from_number  INTEGER NOT NULL,
    to_number    INTEGER,
    seq          INTEGER NOT NULL,
    moved_at     INTEGER,
    PRIMARY KEY (subscription, lane)
) STRICT, WITHOUT ROWID;

CREATE TABLE relevo_member (
    subscription TEXT NOT NULL,
    member       TEXT NOT NULL,
    beat         INTEGER NOT NULL,
    note         TEXT NOT NULL,
    seen_at      INTEGER NOT NULL,
    PRIMARY KEY (subscription, member)
) STRICT, WITHOUT ROWID;

CREATE TABLE relevo_dead_letter (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription    TEXT NOT NULL,
    lane            INTEGER NOT NULL,
    -- Where it stood: a replay puts it back there.
    order_key       TEXT NOT NULL,
    to_number       INTEGER NOT NULL,
    seq             INTEGER NOT NULL,
    -- The event, with its bytes as published (or as edited, in a copy).
    event_id        TEXT NOT NULL,
    topic           TEXT NOT NULL,
    key             TEXT,
    headers         TEXT NOT NULL,
    payload         BLOB NOT NULL,
    created_at      INTEGER NOT NULL,
    class           TEXT NOT NULL,
    error           TEXT NOT NULL,
    attempts        INTEGER NOT NULL,
    first_failed_at INTEGER NOT NULL,
    died_at         INTEGER NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('dead', 'requested', 'replayed', 'archived')),
    copy_of         INTEGER
);
CREATE INDEX relevo_dead_letter_event ON relevo_dead_letter (event_id);
CREATE INDEX relevo_dead_letter_state ON relevo_dead_letter (state, subscription);
CREATE INDEX relevo_dead_letter_died_at ON relevo_dead_letter (died_at);

CREATE TABLE relevo_parked_key (
    subscription    TEXT NOT NULL,
    lane            INTEGER NOT NULL,
    key             TEXT NOT NULL,
    attempts        INTEGER NOT NULL,
    deaths          INTEGER NOT NULL,
    -- NULL: held until an operator acts.
    due             INTEGER,
    class           TEXT NOT NULL,
    error           TEXT NOT NULL,
    first_failed_at INTEGER NOT NULL,
    PRIMARY KEY (subscription, lane, key)
) STRICT, WITHOUT ROWID;

-- Events that wait behind a parked key, delivered in the order of (to_number, seq). The id is part of the key:
-- an edited copy may stand where its original stands.
CREATE TABLE relevo_parked_ref (
    subscription TEXT NOT NULL,
    lane         INTEGER NOT NULL,
    key          TEXT NOT NULL,
    to_number    INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    id           TEXT NOT NULL,
    -- The dead letter that has its bytes; NULL: the log has them.
    letter       INTEGER,
    PRIMARY KEY (subscription, lane, key, to_number, seq, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX relevo_parked_ref_seq ON relevo_parked_ref (seq);
CREATE INDEX relevo_parked_ref_id ON relevo_parked_ref (id);
CREATE INDEX relevo_parked_ref_letter ON relevo_parked_ref (letter) WHERE letter IS NOT NULL;

CREATE TABLE relevo_skip (
    subscription TEXT NOT NULL,
    id           TEXT NOT NULL,
    seq          INTEGER NOT NULL,
    reason       TEXT NOT NULL,
    at           INTEGER NOT NULL,
    PRIMARY KEY (subscription, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX relevo_skip_at ON relevo_skip (at);

-- Events left out because an operator moved a cursor forwards: above < seq <= up_to of a lane.
CREATE TABLE relevo_gap (
    subscription TEXT NOT NULL,
    lane         INTEGER NOT NULL,
    above        INTEGER NOT NULL,
    up_to        INTEGER NOT NULL,
    reason       TEXT NOT NULL,
    at           INTEGER NOT NULL,
    PRIMARY KEY (subscription, lane, above, up_to)
) STRICT, WITHOUT ROWID;

CREATE TABLE relevo_replay (
    operation  INTEGER PRIMARY KEY AUTOINCREMENT,
    total      INTEGER NOT NULL,
    cancelled  INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL
);

-- Wishes that only a lane's owner may carry out: put a dead letter back, or let a held key go on.
CREATE TABLE relevo_request (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription TEXT NOT NULL,
    lane         INTEGER NOT NULL,
    key          TEXT NOT NULL,
    kind         TEXT NOT NULL CHECK (kind IN ('replay', 'release')),
    letter       INTEGER,
    operation    INTEGER,
    due          INTEGER NOT NULL
);
CREATE INDEX relevo_request_due ON relevo_request (subscription, due);
CREATE INDEX relevo_request_operation ON relevo_request (operation);
CREATE INDEX relevo_request_letter ON relevo_request (letter);
