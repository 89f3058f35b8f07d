"""The reference of the server's routes and refusals: the text of `docs/contract.md`."""

from __future__ import annotations

from openagentic_sdk.server.contract.refusals import CODES
from openagentic_sdk.server.contract.table import ENDPOINTS
from openagentic_sdk.server.responses import FIELDS, ITEMS

from .source import ROOT

PAGE = ROOT / "docs" / "contract.md"
HEAD = """# The contract of the server

This page lists the server's routes and refusals. `GET /openapi.json` returns the same contract as an OpenAPI 3.1 document,
with the schemas of all values and events. The application, its client, that document and this page are generated from one
table, [table.py](../openagentic_sdk/server/contract/table.py); `python3 -m tests.guards.generated` writes this page.
[Serving](serving.md) describes what the routes do.

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
## What a Responses request may contain

`accepts` is a list in the agent's table of `agents.toml` (`accepts = ["instructions", "history", "format"]`; default: none).
Where the tables below state `accepts:` and a word, the field is refused with status 400 unless the agent's list contains the
word. The prompt consists of the text from users and of accepted instructions. Other earlier messages are quoted in it, and
are untrusted for the rules on [labels](injection.md). Fields that are not listed have no effect.

| field of the body | |
|---|---|
"""
ITEMS_HEAD = """
| item of `input` | |
|---|---|
"""
CODES_HEAD = """
## Refusals

The body of a refusal is `{"error": {"status", "code", "message"}}`: `code` is for programs and never changes, `message` is
for people. The routes of the Responses API use OpenAI's form, with the same `code`. Later versions may add codes: handle an
unknown code by its status.

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
    item_tables = RESPONSES_HEAD + fields + "\n" + ITEMS_HEAD + items + "\n"
    return HEAD + "\n".join(routes) + "\n" + item_tables + CODES_HEAD + "\n".join(codes) + "\n"
