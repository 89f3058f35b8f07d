"""Read marketplaces: files that list plugins with their folders and, in addition to their manifests, their contents.

Only folders inside the marketplace are plugins here: nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import OptionsError
from ...ground.checks import refuse_repeated_keys
from ...ground.diagnostic import Diagnostic
from ...ground.disk import path_below
from ...ground.frozen import frozen
from ...ground.loose import as_list, as_mapping
from ...ground.patterns import regex
from ...ground.system import reason_of
from ...skills.files import read_bytes
from ...skills.ledger import row_of, word_notes
from .granting import MARKETPLACE

MAX_MANIFEST_BYTES = 1024 * 1024
# The keys that define a plugin's contents, in its manifest and in the entry of a marketplace.
COMPONENTS = ("skills", "commands", "agents", "hooks", "mcpServers", "outputStyles")
NAME = regex(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@frozen
class ListedPlugin:
    """A plugin of a marketplace: its `id` (`name@marketplace`), its real folder, and the entry that lists it.

    `market` is the real folder of the marketplace.
    """

    id: str
    name: str
    folder: str
    market: str
    entry: Mapping[str, Any]

    @property
    def is_strict(self) -> bool:
        """Whether the plugin's own manifest defines its contents, and the entry only adds to them."""
        return self.entry.get("strict") is not False

    @property
    def digest(self) -> str:
        """The digest of the entry, which can define commands to run."""
        text = json.dumps(dict(self.entry), sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def is_marketplace(root: str) -> bool:
    """Whether a folder contains a marketplace file."""
    return os.path.lexists(os.path.join(root, MARKETPLACE))


def listed_plugins(root: str, problems: list[Diagnostic] | None) -> list[ListedPlugin]:
    """The plugins of the marketplace in a real folder whose folders are inside it.

    Problems are appended to `problems`. If that is None, they are ignored, but an unreadable file raises `OptionsError`.
    """
    path = os.path.join(root, MARKETPLACE)
    market = read_json(path, root, problems)
    by_id: dict[str, ListedPlugin] = {}
    notes: list[Diagnostic] = []
    if isinstance(market, dict):
        notes += word_notes("marketplace", _dotted(market), "plugin-part")
        name = market.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            notes.append(
                Diagnostic.left_out(
                    "marketplace", f"its name {name!r:.80} must consist of letters, digits, '.', '_' and '-'"
                )
            )
        elif not isinstance(market.get("plugins"), list):
            notes.append(Diagnostic.left_out("marketplace", "it has no list of plugins"))
        else:
            for at, entry in enumerate(market["plugins"]):
                one = _listed(root, market, name, entry, f"plugins[{at}]", notes)
                if one is not None and one.id in by_id:
                    notes.append(Diagnostic.left_out("plugin", f"{one.id} is listed twice: the first one is used"))
                elif one is not None:
                    by_id[one.id] = one
    elif problems is not None and market is not None:
        notes.append(Diagnostic.left_out("marketplace", "it is not a JSON object"))
    if problems is not None:
        problems += [Diagnostic(note.code, note.message, path=path, is_error=note.is_error) for note in notes]
    return list(by_id.values())


def _dotted(market: Mapping[str, Any]) -> Iterator[str]:
    for key, value in market.items():
        yield from (f"metadata.{inner}" for inner in value) if key == "metadata" and isinstance(value, dict) else (key,)


def _listed(
    root: str, market: Mapping[str, Any], market_name: str, entry: Any, where: str, notes: list[Diagnostic]
) -> ListedPlugin | None:
    """Read one entry; return None, and add a finding, if it names no usable folder of the marketplace."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(name, str) or not NAME.fullmatch(name):
        notes.append(Diagnostic.left_out("plugin", f"{where} has no name of letters, digits, '.', '_' and '-'"))
        return None
    notes += word_notes("marketplace-plugin", entry, "plugin-part")
    source = entry.get("source")
    if not isinstance(source, str):
        kind = as_mapping(source).get("source")
        row = row_of("plugin-source", kind) if isinstance(kind, str) else None
        why = f"plugins of the source {kind} are not supported: {row.how}" if row else f"{name} has no known source"
        notes.append(Diagnostic("plugin-source", why))
        return None
    base = as_mapping(market.get("metadata")).get("pluginRoot")
    below = os.path.join(base, source) if isinstance(base, str) and not source.startswith("./") else source
    place = path_below(root, below)
    if place is None or not os.path.isdir(place):
        notes.append(Diagnostic.left_out("plugin", f"{name}: there is no folder {source!r:.80} in the marketplace"))
        return None
    wrong = [key for key in COMPONENTS if not isinstance(entry.get(key, ""), str | list | dict)]
    if wrong or not isinstance(entry.get("strict", True), bool):
        notes.append(Diagnostic.left_out("plugin", f"{name}: {(wrong or ['strict'])[0]} has a value of the wrong kind"))
        return None
    return ListedPlugin(f"{name}@{market_name}", name, place, root, entry)


def with_entry(own: Mapping[str, Any] | None, listed: ListedPlugin) -> dict[str, Any]:
    """The manifest of a plugin, merged from its marketplace entry and its `own`. Raises `ValueError` with the reason."""
    entry = {key: listed.entry[key] for key in COMPONENTS if key in listed.entry}
    manifest = dict(own) if own is not None else {"name": listed.name}
    if listed.is_strict:
        return manifest | {key: _both(manifest.get(key), value) for key, value in entry.items()}
    twice = [key for key in COMPONENTS if key in manifest]
    if twice:
        raise ValueError(
            f"its marketplace defines all of {listed.name} (strict: false), and its own manifest also names "
            f"{', '.join(twice)}: remove that, or `strict: false`"
        )
    return manifest | entry | {"name": listed.name}


def _both(own: Any, more: Any) -> Any:
    if own is None:
        return more
    return [*(as_list(own) or [own]), *(as_list(more) or [more])]


def read_json(path: str, boundary: str, problems: list[Diagnostic] | None) -> Any:
    """Read a JSON file that is really inside `boundary`. If it cannot be read, add a finding and return None.

    Without `problems`, raise `OptionsError` instead.
    """
    try:
        text = read_bytes(path, boundary=boundary, max_bytes=MAX_MANIFEST_BYTES)
        return json.loads(text, object_pairs_hook=refuse_repeated_keys)
    except (OSError, ValueError, RecursionError) as error:
        if problems is None:
            raise OptionsError(f"{path} cannot be read: {reason_of(error)}") from error
        problems.append(Diagnostic.left_out("plugin", f"the file is left out: {error}", path))
        return None
