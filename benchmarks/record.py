"""The cost of a provable record: signing a session compared with the steps that the signature covers."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise

from openagentic_sdk import FileSessionStore, OpenAgenticOptions, run
from openagentic_sdk.parts.record.sign import sign_session
from openagentic_sdk.parts.record.signers import InstallationKey, Trust
from openagentic_sdk.parts.record.verify import verify_record
from openagentic_sdk.serialization import dumps_event
from openagentic_sdk.sessions.seal import Seal, Signer

from . import Row, best_cpu_s
from ._record_folds import backtests, costs
from .loop import Nothing, Stepping

STEPS = 200


def rows() -> list[Row]:
    return [*_signing(), *costs(), *backtests()]


def _signing() -> list[Row]:
    """Compare a signature at the end of a run with the run's steps, which compute nothing of the chain."""
    with tempfile.TemporaryDirectory() as folder:
        key = InstallationKey(f"{folder}/installation.key")
        plain, signed = FileSessionStore(f"{folder}/plain"), FileSessionStore(f"{folder}/signed")
        # In turns, so that both see the machine in the same state; the minimum of each is the undisturbed value.
        pairs = [(_run(plain, ()), _run(signed, [key])) for _ in range(5)]
        step_us, signed_us = (min(steps) for steps in zip(*((one[1], two[1]) for one, two in pairs), strict=True))
        session_id, _, wall_s = pairs[0][0]
        began = time.perf_counter()
        sign_session(plain, session_id, [key])
        signing_s = time.perf_counter() - began
        events, trust = plain.read_events(session_id), Trust(Seal(key.path))
        checking_s = best_cpu_s(lambda: verify_record(session_id, events, trust), 3) / len(events)
        floor_s = best_cpu_s(lambda: [sha256(dumps_event(event).encode()) for event in events], 3) / len(events)
    a_step = "one that nobody signs"
    return [
        Row(
            "processor time of a step of a run that is signed",
            signed_us,
            "us",
            signed_us / step_us,
            a_step,
            "ratio <= 1.05",
        ),
        Row("signing at the end, by step", signing_s / STEPS * 1e6, "us", signing_s / wall_s, "a trivial run's time"),
        Row(
            "checking one signed event",
            checking_s * 1e6,
            "us",
            checking_s / floor_s,
            "the sha256 of it",
            "ratio <= 4",
        ),
    ]


def _run(store: FileSessionStore, signers: Sequence[Signer]) -> tuple[str, float, float]:
    """The id, microseconds of processor time of a step, and wall-clock seconds of the whole run."""
    model = Stepping(STEPS)
    options = OpenAgenticOptions(
        provider=model,
        model="m",
        tools=[Nothing()],
        session_store=store,
        max_steps=STEPS + 1,
        record_signers=signers,
    )
    began = time.perf_counter()
    done = asyncio.run(run(prompt="go", options=options))
    wall_s = time.perf_counter() - began
    passed = [after - before for before, after in pairwise(model.asked_at)]
    return done.session_id, statistics.quantiles(passed, n=20)[0] * 1e6, wall_s
