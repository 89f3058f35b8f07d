"""The file store keeps the contract of every store, and the promises that only files can make."""

from __future__ import annotations

from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing import store_contract


class FileSessionStoreTest(store_contract.StoreContract):
    can_take_over = False

    def make_store(self) -> SessionStore:
        return FileSessionStore(self.place, "flush")

    def process_source(self) -> str:
        return f"from openagentic_sdk.sessions.store import FileSessionStore\nstore = FileSessionStore({str(self.place)!r})"
