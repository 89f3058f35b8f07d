"""Sign the record of each run once its result is stored."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import OptionsError, StorageError
from ...events import SystemNotice
from ...kernel.agent import Run
from ...kernel.part import Part
from ...sessions.base import SessionStore
from ...sessions.core import SessionWriter
from ...sessions.seal import Signer


class RecordSigning(Part):
    """A part that appends the checkpoint that vouches for a run's events.

    A failure is shown as a notice; the checkpoint of the next run then covers these events, too.
    """

    def __init__(self, run: Run, store: SessionStore, signers: Sequence[Signer]) -> None:
        super().__init__(run)
        self._store, self._signers = store, signers

    async def vouch(self) -> None:
        # Few runs are signed, and the signing modules take longer to import than most runs take to end.
        from .sign import append_signed_head

        def append(writer: SessionWriter) -> None:
            append_signed_head(self._store, writer, self._signers)

        try:
            await self.run.recorder.append_by(append)
        except (StorageError, OptionsError) as error:
            text = f"this run's record was not signed: {error}"
            await self.run.recorder.show(SystemNotice("record.unsigned", text))
