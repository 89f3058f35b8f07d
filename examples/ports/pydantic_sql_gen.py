"""examples/sql_gen.py of pydantic-ai 2.62.0: a query that the database has parsed before anybody gets it (here SQLite)."""

import asyncio
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated

from plays import answer, model

from openagentic_sdk import Agent, MemorySessionStore, OpenAgenticOptions, ToolContext
from openagentic_sdk.errors import ModelRetryError

SCHEMA = """
CREATE TABLE records (
    created_at timestamp,
    trace_id text,
    level text,
    span_name text,
    message text,
    attributes json,
    is_exception boolean,
    service_name text
);
"""
EXAMPLES = {
    "show me records where foobar is false": "SELECT * FROM records WHERE attributes->>'foobar' = false",
    "show me records from yesterday": "SELECT * FROM records WHERE date(created_at) = date('now', '-1 day')",
    "show me exceptions": "SELECT * FROM records WHERE is_exception",
}


@dataclass
class Success:
    """A query that answers the request."""

    sql_query: str
    explanation: Annotated[str, "Explanation of the query, as markdown"] = ""


@dataclass
class InvalidRequest:
    """The request does not contain enough to write a query."""

    error_message: str


def database(ctx: ToolContext[sqlite3.Connection]) -> str:
    examples = "\n".join(f"request: {request}\nresponse: {query}" for request, query in EXAMPLES.items())
    return f"The table:\n{SCHEMA}\ntoday's date = {datetime.now(UTC).date()}\n\n{examples}"


def explain(ctx: ToolContext[sqlite3.Connection], found: Success | InvalidRequest) -> Success | InvalidRequest:
    if isinstance(found, InvalidRequest):
        return found
    query = found.sql_query.replace("\\", "")
    if not query.upper().startswith("SELECT"):
        raise ModelRetryError("Please create a SELECT query")
    try:
        ctx.deps.execute(f"EXPLAIN {query}")
    except sqlite3.Error as error:
        raise ModelRetryError(f"Invalid query: {error}") from error
    return replace(found, sql_query=query)


agent = Agent(
    model(
        "openai:gpt-4o",
        answer(value={"sql_query": "DELETE FROM records"}),
        {**answer(value={"sql_query": "SELECT * FROM logs"}), "expect": {"contains": "create a SELECT query"}},
        {
            **answer(value={"sql_query": "SELECT * FROM records WHERE level = \\'error\\'"}),
            "expect": {"contains": "no such table: logs"},
        },
    ),
    instructions=["Write a SQLite query that suits the user's request.", database],
    deps=sqlite3.Connection,
    output=Success | InvalidRequest,
    output_validators=[explain],
    options=OpenAgenticOptions(session_store=MemorySessionStore()),
)


async def main() -> None:
    prompt = sys.argv[1] if len(sys.argv) > 1 else 'show me logs with level "error"'
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        connection.execute(SCHEMA)
        print((await agent.run(prompt, deps=connection)).output)


if __name__ == "__main__":
    asyncio.run(main())
