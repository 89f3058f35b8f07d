"""What the contract runs in processes of its own; `store` is bound before."""

from __future__ import annotations

CRASHING_WRITER = """
import sys
from openagentic_sdk.events import ToolResult
writer = store.open_writer(sys.argv[1])
print("open", flush=True)
number = writer.last_seq
while True:
    batch = [ToolResult(f"call-{number + i}", output="x" * 2000) for i in range(1 + number % 3)]
    number = writer.append(batch)[-1].seq
    print(number, flush=True)
"""
STALLED_WRITER = """
import sys
from openagentic_sdk.errors import LeaseLostError
from openagentic_sdk.events import UserMessage
writer = store.open_writer(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
try:
    writer.append([UserMessage("from the past")])
except LeaseLostError:
    print("fenced", flush=True)
"""
COUNTING_WRITER = """
import sys
from openagentic_sdk.errors import SessionLockedError
from openagentic_sdk.events import UserMessage
done = 0
while done < int(sys.argv[3]):
    try:
        store.append_events(sys.argv[1], [UserMessage(f"{sys.argv[2]} {done} a"), UserMessage(f"{sys.argv[2]} {done} b")])
        done += 1
    except SessionLockedError:
        pass
"""
