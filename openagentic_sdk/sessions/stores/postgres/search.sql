-- The index that searches use, created where the extension is available.

CREATE EXTENSION IF NOT EXISTS pg_trgm WITH SCHEMA public;

CREATE TABLE IF NOT EXISTS openagentic_words (
    session integer NOT NULL REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
    seq bigint NOT NULL,
    words text COLLATE "C" NOT NULL,
    PRIMARY KEY (session, seq)
);

CREATE INDEX IF NOT EXISTS openagentic_words_trigrams ON openagentic_words USING gin (words public.gin_trgm_ops);

CREATE TABLE IF NOT EXISTS openagentic_words_upto (
    session integer PRIMARY KEY REFERENCES openagentic_sessions (key) ON DELETE CASCADE,
    seq bigint NOT NULL
);

CREATE INDEX IF NOT EXISTS openagentic_words_of_rows ON openagentic_words USING gin (words public.gin_trgm_ops)
    WHERE seq = 0;

-- `searched` shows up to where a session is indexed: it is the sum of three numbers at that time. None of them ever
-- decreases and each change increases one, so what an older version writes, or erases, is noticed too. Older versions ignore
-- the column.

ALTER TABLE openagentic_sessions ADD COLUMN IF NOT EXISTS searched bigint NOT NULL DEFAULT -1;

CREATE INDEX IF NOT EXISTS openagentic_sessions_behind ON openagentic_sessions (key)
    WHERE searched < epoch + last_seq + revision;
