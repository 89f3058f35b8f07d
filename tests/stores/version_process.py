"""A process that runs the version of the package found first on `sys.path`: one JSON request and one response per line.

It uses only what every version has offered since the first with all five stores.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from openagentic_sdk.errors import OpenAgentSdkError
from openagentic_sdk.events import AssistantMessage, UnknownEvent, UserMessage
from openagentic_sdk.sessions.stores.locate import open_store

try:
    from openagentic_sdk.parts.record.lifecycle import fork_session, tag_session
except ImportError:
    from openagentic_sdk.sessions.lifecycle import fork_session, tag_session


def main(url: str) -> None:
    store, writers = open_store(url), {}
    if hasattr(store, "index_from"):
        type(store).index_from = 1  # build the index at once, as in a folder of many sessions

    def do(what: str, name: str, text: str) -> Any:
        match what:
            case "create":
                return store.create_session(session_id=name, metadata={"cwd": "/c"})
            case "append":
                return [event.seq for event in store.append_events(name, [UserMessage(text), AssistantMessage(text)])]
            case "open":
                writers[name] = store.open_writer(name)
            case "write":
                return [event.seq for event in writers[name].append([UserMessage(text)])]
            case "close":
                writers.pop(name).close()
            case "read":
                events = store.read_events(name)
                return [getattr(event, "text", event.type) for event in events]
            case "list":
                return [(row.id, row.events, row.last_prompt) for row in store.list_session_summaries()]
            case "search":
                return sorted((hit.session_id, hit.seq) for hit in store.search(text))
            case "fork":
                return fork_session(store, name)
            case "tag":
                return list(tag_session(store, name, add=[text]).tags)
            case "delete":
                store.delete_session(name)
            case "claim":
                return store.claim_request(name, text)
            case "erase":
                seq, _, new = text.partition(" ")
                store.rewrite_events(name, lambda events: {int(seq): replace(events[int(seq) - 1], text=new)})
            case "part":
                source, _, at_seq = text.partition(" ")
                store.copy_session(source, name, at_seq=int(at_seq), tail=[], metadata={"cwd": "/c"})
            case "foreign":
                store.append_event(name, UnknownEvent({"type": "from.the.future", "text": text, "deep": [2**70]}))
            case "put":
                return store.put_blob(name, text.encode())
            case "get":
                return store.read_blob(name, text).decode()
            case "drop":
                store.delete_blobs(name, [text])
            case "set":
                store.update_metadata(name, {"note": text, "cwd": f"/{text}"})
            case "noted":
                note = store.read_metadata(name)["metadata"].get("note")
                return [note, [row.id for row in store.list_session_summaries(cwd=f"/{note}")]]
            case "is_told":
                return store.wait_for_events(name, after_seq=int(text), timeout_s=20)
        return None

    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        try:
            answer = {"came": do(**json.loads(line))}
        except OpenAgentSdkError as error:
            answer = {"error": type(error).__name__, "words": str(error)}
        print(json.dumps(answer), flush=True)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1])
