"""Tools for testing agents: scripted models, a fake clock, crashes at every point, injected faults, contracts."""

from typing import TYPE_CHECKING, Any

from .clock import FakeClock
from .scripted import ScriptedProvider

if TYPE_CHECKING:
    from .crash import crash_everywhere, crash_report

__all__ = ["FakeClock", "ScriptedProvider", "crash_everywhere", "crash_report"]


def __getattr__(name: str) -> Any:
    # Imported on demand: judging crashes needs the folds of many features, a scripted model needs none of them.
    if name not in ("crash_everywhere", "crash_report"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import crash

    return getattr(crash, name)
