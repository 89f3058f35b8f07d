-- The tables of the SQLite store. Statements are separated by blank lines. A line `-- version N` begins the statements that
-- migrate a database from the previous version. The columns for arbitrary texts (cwd, parent, tenant) contain JSON in ASCII.

-- version 1: sessions, events and blobs.

CREATE TABLE sessions (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    metadata TEXT NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0,
    touched INTEGER NOT NULL,
    cwd TEXT NOT NULL DEFAULT 'null',
    parent TEXT NOT NULL DEFAULT 'null',
    is_child INTEGER NOT NULL DEFAULT 0,
    summary TEXT
);

CREATE INDEX sessions_touched ON sessions (is_child, touched);

CREATE INDEX sessions_cwd ON sessions (cwd, is_child, touched);

CREATE INDEX sessions_parent ON sessions (parent) WHERE parent != 'null';

CREATE INDEX sessions_newest ON sessions (touched);

CREATE TABLE events (
    session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    updated REAL NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (session, seq)
);

CREATE TABLE blobs (
    session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    sha256 TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (session, sha256)
);

-- version 2: One number instead of (session, seq): an append writes one page; with a key of two columns, it writes two.

CREATE TABLE placed_events (place INTEGER PRIMARY KEY, updated REAL NOT NULL, data TEXT NOT NULL);

INSERT INTO placed_events SELECT (session << 32) + seq, updated, data FROM events;

DROP TABLE events;

ALTER TABLE placed_events RENAME TO events;

CREATE TRIGGER sessions_events AFTER DELETE ON sessions BEGIN
    DELETE FROM events WHERE place > old.key << 32 AND place < (old.key + 1) << 32;
END;

-- version 3: No event or blob without its session, even on connections that do not enable foreign keys.

CREATE TRIGGER events_sessions BEFORE INSERT ON events BEGIN
    SELECT RAISE (ABORT, 'FOREIGN KEY constraint failed: there is no such session')
    WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE key = new.place >> 32);
END;

CREATE TRIGGER blobs_sessions BEFORE INSERT ON blobs BEGIN
    SELECT RAISE (ABORT, 'FOREIGN KEY constraint failed: there is no such session')
    WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE key = new.session);
END;

CREATE TRIGGER sessions_blobs AFTER DELETE ON sessions BEGIN DELETE FROM blobs WHERE session = old.key; END;

-- version 4: The session's tenant, as JSON, and the messages that wait for its run.

ALTER TABLE sessions ADD COLUMN tenant TEXT NOT NULL DEFAULT 'null';

CREATE INDEX sessions_tenant ON sessions (tenant, is_child, touched) WHERE tenant != 'null';

CREATE TABLE messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    data TEXT NOT NULL
);

CREATE INDEX messages_session ON messages (session, number);

CREATE TRIGGER messages_sessions BEFORE INSERT ON messages BEGIN
    SELECT RAISE (ABORT, 'FOREIGN KEY constraint failed: there is no such session')
    WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE key = new.session);
END;

CREATE TRIGGER sessions_messages AFTER DELETE ON sessions BEGIN DELETE FROM messages WHERE session = old.key; END;

-- version 5: The views after compactions, for resumes: a cache, any row of which may be deleted.

CREATE TABLE checkpoints (session INTEGER PRIMARY KEY, data BLOB NOT NULL);

CREATE TRIGGER sessions_checkpoints AFTER DELETE ON sessions BEGIN
    DELETE FROM checkpoints WHERE session = old.key;
END;

-- version 6: The runs of a fleet, in the same tables as in Postgres: fleet.sql.

-- version 7: The session to which a request id is bound; deleting a session deletes its rows.

CREATE TABLE openagentic_requests (
    id text PRIMARY KEY, session integer NOT NULL REFERENCES sessions (key) ON DELETE CASCADE
);

CREATE INDEX openagentic_requests_session ON openagentic_requests (session);

CREATE TRIGGER sessions_requests AFTER DELETE ON sessions BEGIN
    DELETE FROM openagentic_requests WHERE session = old.key;
END;
