"""The reference of the server's routes and refusals, as `docs/contract.md` holds it."""

from __future__ import annotations

from openagentic_sdk.server.contract.refusals import CODES
from openagentic_sdk.server.contract.table import ENDPOINTS
from openagentic_sdk.server.responses import FIELDS, ITEMS

from .source import ROOT

PAGE = ROOT / "docs" / "contract.md"
HEAD = """# The contract of the server

Programs are made from this: `GET /openapi.json` is the same as OpenAPI 3.1, with the schema of every value and every event.
All of it, the application included, is made from one table,
[table.py](../openagentic_sdk/server/contract/table.py); this page is written by `python3 -m tests.guards.generated`. What
the routes do is told in [serving](serving.md).

```python
from openagentic_sdk.server.contract.openapi import openapi

print(openapi()["openapi"], openapi()["paths"]["/v1/questions"]["get"]["operationId"])
```

```text
3.1.0 list_questions
```

## Routes

| operation | route | query | |
|---|---|---|---|
"""
RESPONSES_HEAD = """
## What a request for a response may hold

`accepts` is a list in the agent's table of `agents.toml` (`accepts = ["instructions", "history", "format"]`; default: none).
Without its word, what needs it is refused with 400. Text of users and of accepted instructions is the prompt; what others
said before is told beside it, and is untrusted to [labels](injection.md). A field that is not here has no effect.

| field of the body | |
|---|---|
"""
ITEMS_HEAD = """
| item of `input` | |
|---|---|
"""
CODES_HEAD = """
## Refusals

A refusal is `{"error": {"status", "code", "message"}}`: `code` is for programs and never changes, `message` is for people.
The routes of the Responses API say it as OpenAI does, with the same `code`. There may be more codes one day: tell an unknown
one by its status.

| code | status | |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    routes = [
        f"| `{each.name}` | `{each.method} {each.path}` | {', '.join(f'`{name}`' for name in each.query)} | {each.summary} |"
        for each in ENDPOINTS
    ]
    codes = [f"| `{code}` | {status} | {meaning} |" for code, (status, meaning) in CODES.items()]
    fields, items = ("\n".join(f"| `{name}` | {fate} |" for name, fate in table.items()) for table in (FIELDS, ITEMS))
    told = RESPONSES_HEAD + fields + "\n" + ITEMS_HEAD + items + "\n"
    return HEAD + "\n".join(routes) + "\n" + told + CODES_HEAD + "\n".join(codes) + "\n"
