"""Convert an editor's prompt to prompt parts. Nothing is read or fetched: the model gets a link as a path."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from ...errors import OptionsError
from ...ground.frozen import changed
from ...ground.media import part_type_of
from ...ground.patterns import regex
from ...ground.text import on_one_line, without_hidden
from ...kernel.prompt import Said
from ...prompts import read_prompt
from .calls import in_fence

_TAG = regex(r"<(?=/?attached-resource\b)", re.IGNORECASE)


def read_blocks(blocks: Any) -> Said:
    """Parse a prompt. Raises an `OptionsError` that names the invalid block, or one for an empty prompt."""
    if not isinstance(blocks, Sequence) or isinstance(blocks, str):
        raise OptionsError(f"a prompt must be a list of content blocks, not {blocks!r:.100}")
    parts = [_part(block, f"block {number} of the prompt") for number, block in enumerate(blocks, 1)]
    if not any(part.get("type") != "text" or str(part["text"]).strip() for part in parts):
        raise OptionsError("the prompt is empty: describe the task")
    prompt = read_prompt(parts, paths=False)
    pairs = [(block, part["text"]) for block, part in zip(blocks, parts, strict=True) if part["type"] == "text"]
    typed = [text for block, text in pairs if block["type"] != "resource"]
    return prompt if len(typed) == len(pairs) else changed(prompt, typed="\n\n".join(typed))


def _part(block: Any, where: str) -> Mapping[str, Any]:
    """Convert a content block to a prompt part. Raises an `OptionsError` that names the block."""
    match block:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image" | "audio" as kind, "data": str(data), "mimeType": str(media_type)}:
            return {"type": kind, "data": data, "media_type": media_type}
        case {"type": "resource_link", "uri": str(uri)}:
            name = block.get("name")
            return {"type": "text", "text": _link(uri, name if isinstance(name, str) else "")}
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
            source = on_one_line(path_of(uri) or uri, 1000).replace('"', "%22")
            # Inside a fence, file names in foreign text (`@.env`) do not attach files.
            inner = in_fence(_TAG.sub("&lt;", text))
            return {"type": "text", "text": f'<attached-resource source="{source}">\n{inner}\n</attached-resource>'}
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob)} as resource}:
            media_type = resource.get("mimeType")
            kind = part_type_of(media_type) if isinstance(media_type, str) else "file"
            type_field = {"media_type": media_type} if isinstance(media_type, str) else {}
            return {
                "type": kind,
                "data": blob,
                "name": on_one_line(posixpath.basename(unquote(uri)), 200),
                **type_field,
            }
    actual = f"its type is {block.get('type')!r:.100}" if isinstance(block, Mapping) else f"it is {block!r:.100}"
    raise OptionsError(f"{where} is not a complete text, image, audio, resource_link or resource block; {actual}")


def _link(uri: str, name: str) -> str:
    """The text that represents a link in the prompt: the path of a local file, which the model can read, or else the URI."""
    path = path_of(uri)
    place, label = (on_one_line(text, 1000).replace("`", "'") for text in (path or uri, without_hidden(name)))
    return f"(attached: `{place}`)" if not label or label in place else f"(attached: `{label}`, `{place}`)"


def path_of(uri: str) -> str | None:
    """The path of a local file that a URI names, with its line number if any; None for any other URI."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    line = re.fullmatch(r"L(\d{1,9})(?::L?\d{1,9}|-L?\d{1,9})?", parts.fragment)
    return unquote(parts.path) + (f":{line[1]}" if line else "")
