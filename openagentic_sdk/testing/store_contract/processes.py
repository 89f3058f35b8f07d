"""Scripts that the contract runs in separate processes; `store` is bound before."""

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
# Prints what it reads of the session for each line of input.
READER = """
import json, sys
def look():
    row = next(row for row in store.list_session_summaries() if row.id == sys.argv[1])
    metadata = store.read_metadata(sys.argv[1])["metadata"]
    seqs = [event.seq for event in store.read_events(sys.argv[1])]
    print(json.dumps([row.title, row.events, store.read_summary(sys.argv[1]).turns, metadata, seqs]), flush=True)
for _ in sys.stdin:
    look()
"""
APPENDING_ONCE = """
import sys
from openagentic_sdk.events import UserMessage
for line in sys.stdin:
    store.append_event(sys.argv[1], UserMessage(line.strip()))
    print("done", flush=True)
"""
# Everything that it acknowledges is stored, although the store is never closed.
KILLING_ITSELF = """
import os, signal, sys
from openagentic_sdk.events import UserMessage
session_id = store.create_session(session_id=sys.argv[1], metadata={"a": 1})
store.append_events(session_id, [UserMessage("one"), UserMessage("two")])
store.update_metadata(session_id, {"b": 2})
store.put_blob(session_id, b"blob")
store.append_event(session_id, UserMessage("three"))
os.kill(os.getpid(), signal.SIGKILL) if hasattr(signal, "SIGKILL") else os._exit(9)
"""
RACING_WRITER = """
import sys
from openagentic_sdk.errors import ConcurrencyError, SessionLockedError
from openagentic_sdk.events import UserMessage
for line in sys.stdin:
    try:
        store.append_events(sys.argv[1], [UserMessage("x")], expected_seq=int(line))
        print("won", flush=True)
    except (ConcurrencyError, SessionLockedError):
        print("lost", flush=True)
"""
PUTTING_MESSAGES = """
import sys
for line in sys.stdin:
    store.put_message(sys.argv[1], {"n": int(line)})
    print("done", flush=True)
"""
CHANGING_METADATA = """
import sys
for line in sys.stdin:
    store.update_metadata(sys.argv[1], {f"{sys.argv[2]}{line.strip()}": int(line)})
    print("done", flush=True)
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
