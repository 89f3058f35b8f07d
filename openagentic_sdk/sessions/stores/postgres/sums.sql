-- The sums over families of sessions, see families.py. Deleting a session sets `session` in its row here to null, whichever
-- version deletes it.

CREATE TABLE IF NOT EXISTS openagentic_families (
    id text COLLATE "C" PRIMARY KEY,
    session integer UNIQUE REFERENCES openagentic_sessions (key) ON DELETE SET NULL,
    root text COLLATE "C" NOT NULL
);

CREATE INDEX IF NOT EXISTS openagentic_families_gone ON openagentic_families (id) WHERE session IS NULL;

CREATE TABLE IF NOT EXISTS openagentic_sums (
    part text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (part, name)
);

-- `counted` shows up to where a session is counted, like `searched` in search.sql.

ALTER TABLE openagentic_sessions ADD COLUMN IF NOT EXISTS counted bigint NOT NULL DEFAULT -1;

CREATE INDEX IF NOT EXISTS openagentic_sessions_uncounted ON openagentic_sessions (key)
    WHERE counted < last_seq + revision;
