"""A suite of two cases, a recorded session and a prompt, under two system prompts; then the changes by the second one."""

from dataclasses import replace

from model import call, model

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, PermissionGate, run_sync, tool
from openagentic_sdk.evals import Calls, Case, Regex, Suite, Variant, compare_reports, run_suite_sync


@tool(effect="read")
def stock(item: str) -> str:
    """Return the stock of an item."""
    return f"{item}: 4"


def agent() -> OpenAgenticOptions:
    played = model(call_turn, {"text": "There are 4 packs of tea.", "expect": {"contains": "tea: 4"}})
    gate = PermissionGate(allow=["stock"])
    return OpenAgenticOptions(**played, tools=[stock], permission_gate=gate, system_prompt="You keep a shop.")


def careless(options: OpenAgenticOptions) -> OpenAgenticOptions:
    return replace(options, **model("I guess there is some."), system_prompt="Be quick.")


call_turn = {"tool_calls": [call("stock", item="tea")]}
store = MemorySessionStore()
session = run_sync(prompt="Is there tea?", options=replace(agent(), session_store=store)).session_id

suite = Suite(
    name="shop",
    agent=agent,
    cases=[Case(id="recorded", session=session), Case(id="asked", prompt="Is there tea?")],
    scores=[Calls(must=["stock"]), Regex(pattern="4 packs")],
    variants={"today": Variant(), "careless": Variant(change=careless)},
)
report = run_suite_sync(suite, store=store)
for row in report.rows():
    print(f"{row.case:9} {row.variant:9} {'passed' if row.rate == 1 else 'failed'}")
    for problem in row.problems():
        print("   ", problem)
found = compare_reports(report, report, variant_a="today", variant_b="careless")
print("worse:", ", ".join(found.worse))
print("no longer as recorded:", ", ".join(found.differs))
