"""How big tests that drive real load are, and where those write that look at no hardware.

Crashes, races and soaks are small by default and run in full with OPENAGENTIC_TEST_LARGE=1.
"""

from __future__ import annotations

import os

LARGE = os.environ.get("OPENAGENTIC_TEST_LARGE") == "1"
# A disk in memory, where there is one.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
