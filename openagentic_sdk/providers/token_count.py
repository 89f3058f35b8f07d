"""The number of input tokens of a request, if the endpoint does not count them: an estimate with its error bound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..ground.frozen import frozen

# Vendors suggest about four characters of English per token; source code, JSON and other scripts have
# fewer, so this is an estimate in between.
BYTES_PER_TOKEN = 3.6
ERROR = 0.35
# Vendors count between about 85 and 1,600 tokens for an image, whatever its size in bytes.
TOKENS_PER_MEDIUM = 1_600


@frozen
class TokenCount:
    """The number of input tokens. `error` is the possible relative error: 0.0 if the endpoint counted."""

    tokens: int
    error: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether the endpoint itself counted."""
        return self.error == 0.0

    def __str__(self) -> str:
        return f"{self.tokens}" if self.is_exact else f"about {self.tokens} (off by {self.error:.0%} at most)"


def estimate_tokens(payload: Mapping[str, Any]) -> TokenCount:
    """Estimate the tokens of a request body; images, files and audio count as media, not by their bytes."""
    media: list[str] = []
    fields = {key: value for key, value in payload.items() if key not in ("model", "stream", "stream_options")}
    text = json.dumps(_without_media(fields, media), ensure_ascii=False, separators=(",", ":"))
    tokens = len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN + TOKENS_PER_MEDIUM * len(media)
    return TokenCount(max(1, round(tokens)), ERROR)


def _without_media(value: Any, media: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_media(item, media) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_media(item, media) for item in value]
    if isinstance(value, str) and len(value) > 2000 and not any(char in value for char in " \n"):
        media.append(value[:20])  # base64: no text has words that long
        return ""
    return value
