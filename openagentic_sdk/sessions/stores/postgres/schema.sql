-- The tables of the Postgres store. Statements are separated by blank lines. A line `-- version N` begins the statements
-- that migrate a database from the previous version. cwd, parent and tenant are digests, since no index accepts texts of any
-- length and content. Ids are compared byte by byte.

-- version 1: sessions, events and blobs.

CREATE SEQUENCE openagentic_touches;

CREATE TABLE openagentic_sessions (
    key integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    created_at double precision NOT NULL,
    metadata text NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    last_seq bigint NOT NULL DEFAULT 0,
    updated double precision NOT NULL,
    touched bigint NOT NULL DEFAULT nextval('openagentic_touches'),
    cwd text COLLATE "C" NOT NULL,
    parent text COLLATE "C" NOT NULL,
    is_child boolean NOT NULL,
    summary text
);

CREATE INDEX ON openagentic_sessions (is_child, touched);

CREATE INDEX ON openagentic_sessions (touched);

CREATE INDEX ON openagentic_sessions (cwd, touched);

CREATE INDEX ON openagentic_sessions (parent) WHERE is_child;

CREATE TABLE openagentic_events (
    session integer NOT NULL REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
    seq bigint NOT NULL,
    updated double precision NOT NULL,
    data text NOT NULL,
    PRIMARY KEY (session, seq)
);

CREATE TABLE openagentic_blobs (
    session integer NOT NULL REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
    sha256 text NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (session, sha256)
);

-- version 2: The holder of a session is a name in its row; one lease for each process, not one connection for each session.

ALTER TABLE openagentic_sessions
    ADD COLUMN holder text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN revision bigint NOT NULL DEFAULT 0;

CREATE TABLE openagentic_holders (
    name text COLLATE "C" PRIMARY KEY,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE openagentic_follows (
    session integer NOT NULL REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
    channel text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (session, channel)
);

-- version 3: The session's tenant, and the messages that wait for its run; each append changes `touched`, so few indexes
-- contain it.

ALTER TABLE openagentic_sessions ADD COLUMN tenant text COLLATE "C" NOT NULL DEFAULT '';

CREATE INDEX ON openagentic_sessions (touched, is_child);

CREATE INDEX ON openagentic_sessions (tenant, touched) WHERE tenant <> '';

DROP INDEX IF EXISTS openagentic_sessions_is_child_touched_idx;

DROP INDEX IF EXISTS openagentic_sessions_touched_idx;

CREATE TABLE openagentic_messages (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session integer NOT NULL REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
    token uuid NOT NULL UNIQUE,
    data text NOT NULL,
    removed timestamptz
);

CREATE INDEX ON openagentic_messages (session, number);

CREATE INDEX ON openagentic_messages (removed) WHERE removed IS NOT NULL;

-- version 4: The views after compactions, for resumes: a cache, any row of which may be deleted.

CREATE TABLE openagentic_checkpoints (
    session integer PRIMARY KEY REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
    data bytea NOT NULL
);

-- version 5: The time until which somebody follows a session is in its row: an append needs no other lookup.

ALTER TABLE openagentic_sessions ADD COLUMN followed timestamptz NOT NULL DEFAULT '-infinity';

-- version 6: The runs of a fleet: fleet.sql. Heartbeats change `lease_until` often, so no index contains it.

-- version 7: The session to which a request id is bound; deleting a session deletes its rows.

CREATE TABLE openagentic_requests (
    id text PRIMARY KEY, session integer NOT NULL REFERENCES openagentic_sessions (key) ON DELETE CASCADE
);

CREATE INDEX ON openagentic_requests (session);
