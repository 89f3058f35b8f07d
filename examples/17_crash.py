"""A payment whose process is killed at every point, before and after each event and each effect, and resumed each time."""

from model import call

from openagentic_sdk import OpenAgenticOptions, PermissionGate, run, tool
from openagentic_sdk.testing import ScriptedProvider, crash_everywhere

# Scripted even with a key in the environment: it is asked again in each of some hundred lives.
TURNS = ({"tool_calls": [call("pay", euros=5)]}, {"tool_calls": [call("pay", euros=7)]}, "Both are paid.")


def start(life: object) -> object:
    """Do what the process does at start-up: begin the work, or continue it."""

    @tool(effect="unsafe")
    def pay(euros: int) -> str:
        """Pay a bill."""
        life.effect(f"{euros} euros")
        return f"{euros} euros are paid"

    options = OpenAgenticOptions(
        provider=ScriptedProvider(TURNS, resumable=True),
        model="scripted",
        tools=[pay],
        permission_gate=PermissionGate(allow=["pay"]),
        session_store=life.store,
        session="bills",
        request_id="bills",
    )
    return run(prompt="Pay both bills.", options=options)


def main() -> None:
    report = crash_everywhere(start)  # simulated in this process; raises AssertionError with the broken promises
    killed = crash_everywhere(start, real=True, points=4)  # processes that SIGKILL ends
    print(f"killed at {report.points} points, and at {killed.points} of them by SIGKILL")
    print("a payment made twice: never")
    print("an answer of the model asked for twice: never")


main()
