"""A server for the conformance suite: `python -m tests.server.mcp_conformance_server PORT`, open to this whole machine."""

from __future__ import annotations

import asyncio
import sys

from openagentic_sdk.server.asgi import app
from openagentic_sdk.server.guard import Principal
from openagentic_sdk.server.listen import SmallServer
from openagentic_sdk.sessions.memory import MemorySessionStore
from tests.server.mcp_peer_registry import agents


def tell(address: str) -> None:
    print(f"{address}/mcp", flush=True)


if __name__ == "__main__":
    application = app(agents, store=MemorySessionStore(), auth=lambda scope: Principal())
    asyncio.run(SmallServer(application, host="127.0.0.1", port=int(sys.argv[1])).serve(tell))
