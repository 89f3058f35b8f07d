"""The label of a result: its origin and who may learn it, from its tool's declaration and the session's history.

`label_result` does not depend on a live run: all its inputs are in the log, so that a recorded call gets the same label
again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

from ...events import ToolResult
from ...ground.disk import is_within
from ...ground.frozen import changed, frozen
from ...ground.loose import as_list, as_mapping
from ...ground.threads import error_words
from ...serialization import dumps_json
from ...sessions.folds.features.untrusted import is_outside, short_source, untrusted_source
from ...tools.labels import ToolLabels
from .fold import LabelsFold

_SHELL = "Bash"
_PATH_KEYS = ("file_path", "notebook_path", "path", "root")


@frozen
class ProjectPlace:
    """The folders of a session, its working directory first, and whether their content is trusted."""

    folders: tuple[str, ...]
    is_trusted: bool

    def holds(self, path: str) -> bool:
        """Whether a path, as written, stays within these folders."""
        return not is_outside(path, self.folders[0], self.folders)

    def with_target(self, result: ToolResult, input: Mapping[str, Any]) -> ToolResult:
        """Return a file tool's result, marked as untrusted if a link in a path of the input leads out of these folders.

        Call it while the run is live: the log then contains the source, and the link is not followed again.
        """
        for path in (input[key] for key in _PATH_KEYS if isinstance(input.get(key), str)):
            with suppress(OSError, ValueError):  # then nothing can be opened there
                target = os.path.realpath(os.path.join(self.folders[0], path))
                if self.holds(path) and not any(is_within(target, os.path.realpath(each)) for each in self.folders):
                    return changed(result, meta={"untrusted": f"file: {target}", **(result.meta or {})})
        return result


def label_result(
    result: ToolResult,
    name: str,
    input: Mapping[str, Any],
    effect: str,
    labels: ToolLabels | None,
    fold: LabelsFold,
    place: ProjectPlace,
    is_started: bool = True,
) -> ToolResult:
    """Return the result with its label. `labels` is the tool's declaration, None if it has none.

    `is_started` is true for a call that began: if it was cancelled, it may have had effects. The tool's own notes about the
    result in `meta` (`untrusted`, a string, and `readers`, a list) can only make it less trusted.
    """
    meta = {key: value for key, value in (result.meta or {}).items() if key not in ("label", "readers")}
    source_result = changed(result, outcome="unknown") if is_started and result.outcome == "cancelled" else result
    declared = labels or ToolLabels()
    label: dict[str, Any] = {}
    source = untrusted_source(name, input, source_result, place.folders[0], place.folders)
    if labels is not None and labels.source != "untrusted" and name.startswith("mcp__") and "untrusted" not in meta:
        source = None  # the declaration of whoever configured the server or wrote the tool outweighs the name's prefix
    if source is None:
        source = _source_of(name, input, source_result, effect, labels, fold, place)
    # A tool that writes a file returns what the model wrote, and a stored output has the label of its own call: neither
    # trusted nor a new source.
    is_known = declared.source == "files" and (effect != "read" or _names_output(input))
    if source is not None or not (is_known or declared.source == "derived"):
        label["source"] = source
    if source is not None:
        meta["untrusted"] = source
        if declared.trusted_fields and name != _SHELL:
            label["trusted_fields"] = list(declared.trusted_fields)
    elif declared.source not in ("derived", "files"):
        label["is_structured"] = True
    if declared.source == "derived" and declared.sink is False and name != _SHELL:
        label["is_own"] = True  # it acts on the session only
    if (readers := _readers_of(declared, source_result)) is not None:
        label["readers"] = readers
        label["name"] = short_source(f"{name} {dumps_json(dict(input))}")
    return changed(result, meta={**meta, "label": label})


def _names_output(input: Mapping[str, Any]) -> bool:
    return str(input.get("file_path")).startswith("blob:")


def _readers_of(labels: ToolLabels, result: ToolResult) -> list[str] | None:
    """The readers besides the user who may learn a result, or None for anyone; of two lists, the intersection."""
    declared = None if not labels.secret else [] if labels.secret is True else [*labels.secret]
    readers = (result.meta or {}).get("readers")
    if readers is not None:
        names = [str(each) for each in as_list(readers)]
        declared = names if declared is None else [reader for reader in declared if reader in names]
    return None if result.outcome in ("denied", "cancelled") else declared


def _source_of(
    name: str,
    input: Mapping[str, Any],
    result: ToolResult,
    effect: str,
    labels: ToolLabels | None,
    fold: LabelsFold,
    place: ProjectPlace,
) -> str | None:
    """The source of an untrusted result, if its tool's name and input do not reveal it; None for a trusted result."""
    if result.outcome in ("denied", "cancelled"):
        return None  # the model saw nothing of it
    if labels is None:
        return short_source(f"tool {name}, which declares no source")
    source = labels.source
    if callable(source):
        return _declared_source(name, source, input, result)
    if source == "untrusted":
        return short_source(f"tool {name}")
    if name == _SHELL and not place.is_trusted:
        return short_source(f"a command in a project that nobody trusts ({input.get('command')})")
    # An error may quote the file: its nearest text, or the names beside it.
    if source != "files" or (effect != "read" and not result.is_error):
        return None
    if not place.is_trusted:
        return short_source(f"a file of a project that nobody trusts ({name})")
    if fold.shell_source is not None:
        return short_source(f"a file that a command may have written after {fold.shell_source}")
    files = as_mapping((result.meta or {}).get("files"))
    path = next((path for path in files if path in fold.written), None)
    if path is None and fold.written and not files:
        path = next(iter(fold.written))
    return short_source(f"{path}, written after {fold.written[path]}") if path is not None else None


def _declared_source(name: str, source: Any, input: Mapping[str, Any], result: ToolResult) -> str | None:
    """The source that a tool's own function returns for a result; only None means that the result is trusted."""
    try:
        answer = source(deepcopy(dict(input)), deepcopy(result.output))
    except Exception as error:  # noqa: BLE001 - third-party code, and a function that fails has vouched for nothing
        return short_source(f"tool {name}, whose source failed: {', '.join(error_words(error))}")
    if answer is None or (isinstance(answer, str) and answer.strip()):
        return None if answer is None else short_source(answer)
    if hasattr(answer, "close"):
        answer.close()  # a coroutine that is never awaited
    return short_source(f"tool {name}, whose source returned {type(answer).__name__}, not None or non-blank text")
