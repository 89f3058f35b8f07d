-- The tables of a fleet, in SQL that both Postgres and SQLite accept. Times are seconds since 1970.

-- `body` is JSON: the prompt, and the client's wishes. `rank` combines priority and age: each minute of waiting counts as
-- one level of priority. `claim` identifies one claim, so that it is recognized if its answer was lost; `fence` increases
-- with each claim. `lost_owner` is the previous owner, whose lease expired before it released the run; `steals` counts such
-- owners. The usage is written whenever an owner releases the run. `reserved_usd` is what the run holds of its tenant's
-- budget, `settled_usd` what was taken from the budget for it.
CREATE TABLE openagentic_runs (
    id {id},
    format integer NOT NULL,
    session text NOT NULL,
    tenant text NOT NULL,
    queue text NOT NULL,
    agent text NOT NULL,
    priority integer NOT NULL,
    state text NOT NULL,
    run_at double precision NOT NULL,
    rank double precision NOT NULL,
    request_id text NOT NULL,
    body text NOT NULL,
    workspace text,
    traceparent text,
    parked_seq bigint NOT NULL DEFAULT 0,
    lease_until double precision,
    owner text NOT NULL DEFAULT '',
    lost_owner text NOT NULL DEFAULT '',
    claim text NOT NULL DEFAULT '',
    fence bigint NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    steals integer NOT NULL DEFAULT 0,
    cancel_requested_at double precision,
    cancelled_by text,
    stop_reason text,
    error text,
    created_at double precision NOT NULL,
    started_at double precision,
    first_event_at double precision,
    ended_at double precision,
    input_tokens bigint,
    output_tokens bigint,
    cost_usd double precision,
    unknown integer NOT NULL DEFAULT 0,
    reserved_usd double precision NOT NULL DEFAULT 0,
    settled_usd double precision NOT NULL DEFAULT 0,
    UNIQUE (tenant, request_id)
){storage};

-- The first run of each tenant, queue and agent is found by jumps along this index, however many wait behind it.
CREATE INDEX openagentic_runs_queued ON openagentic_runs (tenant, queue, agent, rank DESC, id) WHERE state = 'queued';

CREATE INDEX openagentic_runs_busy ON openagentic_runs (tenant, queue, agent) WHERE state = 'running';

CREATE UNIQUE INDEX openagentic_runs_running ON openagentic_runs (session) WHERE state = 'running';

CREATE INDEX openagentic_runs_waiting ON openagentic_runs (id) WHERE state = 'waiting';

CREATE INDEX openagentic_runs_open ON openagentic_runs (session, id)
    WHERE state IN ('queued', 'running', 'waiting');

CREATE TABLE openagentic_limits (
    kind text NOT NULL,
    name text NOT NULL,
    max_running integer NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE TABLE openagentic_budgets (
    tenant text PRIMARY KEY,
    max_usd double precision NOT NULL,
    run_usd double precision,
    spent_usd double precision NOT NULL,
    reserved_usd double precision NOT NULL
);

-- A rate-limit bucket for each key of a provider; without rates, only the time until which the key is not used.
CREATE TABLE openagentic_rates (
    name text PRIMARY KEY,
    requests_per_minute double precision,
    tokens_per_minute double precision,
    requests double precision,
    tokens double precision,
    at double precision NOT NULL,
    blocked_until double precision NOT NULL
);

CREATE TABLE openagentic_schedules (
    name text PRIMARY KEY,
    cron text NOT NULL,
    zone text NOT NULL,
    agent text NOT NULL,
    body text NOT NULL,
    tenant text NOT NULL,
    queue text NOT NULL,
    priority integer NOT NULL,
    workspace text,
    max_attempts integer NOT NULL,
    is_paused integer NOT NULL,
    next_at double precision NOT NULL,
    fired_at double precision,
    fired bigint NOT NULL,
    error text
);
