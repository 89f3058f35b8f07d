"""Runs that survive the loss of their machine: a queue in a shared database, and workers on any number of hosts."""

from .fleet import Fleet
from .record import FleetRun
from .worker import Worker, execute_run

__all__ = ["Fleet", "FleetRun", "Worker", "execute_run"]
