"""What tests of agents need: scripted models, a clock that stands still, crashes everywhere, faults on demand, contracts."""

from .clock import FakeClock
from .crash import crash_everywhere, crash_report
from .scripted import ScriptedProvider

__all__ = ["FakeClock", "ScriptedProvider", "crash_everywhere", "crash_report"]
