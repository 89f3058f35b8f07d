"""What tests of agents need: scripted models, a clock that stands still, faults on demand, contracts."""

from .clock import FakeClock
from .scripted import ScriptedProvider

__all__ = ["FakeClock", "ScriptedProvider"]
