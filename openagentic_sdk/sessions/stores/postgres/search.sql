-- The index that search asks; made where the extension is to be had.

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
