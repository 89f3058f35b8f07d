"""The files that the session has seen: a tool may change one only as the model last saw it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....events import FilesRestored, FilesRestoring, ToolResult
from ..view import Fold, SessionView


class ObservedFilesFold(Fold):
    """`digests` maps each file's path to the digest of what the model last saw of it."""

    name = "observed_files"
    reads = (ToolResult, FilesRestored)

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    def apply(self, event: ToolResult | FilesRestored, view: SessionView) -> None:
        if isinstance(event, FilesRestored):
            self._restored(event, view)
            return
        files = event.meta and event.meta.get("files")
        if files and isinstance(files, Mapping):
            self.digests.update({str(path): str(digest) for path, digest in files.items()})

    def _restored(self, event: FilesRestored, view: SessionView) -> None:
        """A model that was taken back too may change files that are again as it saw them, without another look."""
        journal = next((e for e in reversed(view.events) if isinstance(e, FilesRestoring)), None)
        for file in journal.files if journal is not None else ():
            path, digest = str(file.get("path")), file.get("sha256")
            if path in event.paths and isinstance(digest, str):
                self.digests[path] = digest
            elif path in event.paths:
                self.digests.pop(path, None)

    def kept(self) -> Mapping[str, Any]:
        return {"digests": dict(self.digests)}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.digests = dict(kept["digests"])
