"""The contract of session stores, as test cases: subclass `StoreContract` and define how to create a store.

    class MyStoreTest(store_contract.StoreContract):
        def make_store(self):
            return MyStore(self.place)

The cases only use what `SessionStore` promises, so they fit any backend. Import the module, not the class, or unittest runs
the abstract class, too.
"""

from __future__ import annotations

from .appending import Appending
from .arguments import Arguments
from .base import StoreTest
from .inbox import Inbox
from .listing import EVERY_SUMMARY_EVENT, Listing
from .resuming import Resuming
from .sessions import Sessions
from .whole import WholeSessions
from .writers import Writers

__all__ = ["EVERY_SUMMARY_EVENT", "StoreContract"]


class StoreContract(Sessions, Arguments, Appending, Writers, Listing, Resuming, WholeSessions, Inbox, StoreTest):
    """The whole contract. A subclass defines `make_store`, and declares in attributes what its backend cannot do.

    `place` is a private folder of the test. `make_store` is called again within a test to access the same sessions through
    a second store object; `process_source` is Python source that binds `store` to a third one in another process.
    """
