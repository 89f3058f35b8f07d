"""Types of pictures, documents and sounds, detected from their first bytes, and the vendors' limits for them.

Nothing is decoded: sizes are read from headers. The limits for pictures and documents are those of the Messages API, which
are the strictest (5 MB and 8,000 pixels per side for a picture, 32 MB for a request). It does not accept audio.
"""

from __future__ import annotations

import struct

MAX_BYTES = {"image": 5 << 20, "file": 32 << 20, "audio": 25 << 20}
MAX_PIXELS = 8_000
# The number of bytes that suffice for `media_type_of`; `pixels_of` may need more of a JPEG.
HEAD_BYTES = 16

_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}


def media_type_of(head: bytes) -> str | None:
    """The media type of content that models accept, detected from its first bytes; None for anything else."""
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    return next((kind for start, kind in _STARTS if head.startswith(start)), None)


def part_type_of(media_type: str) -> str:
    """The type of the message part for this media type: `image`, `audio` or `file`."""
    family = media_type.partition("/")[0]
    return family if family in ("image", "audio") else "file"


def pixels_of(data: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG, GIF, WebP or JPEG from its header; None if they cannot be read from it."""
    try:
        match media_type_of(data[:HEAD_BYTES]):
            case "image/png" if data[12:16] == b"IHDR":
                return struct.unpack(">II", data[16:24])
            case "image/gif" if len(data) >= 13:  # the header and the logical screen descriptor
                return struct.unpack("<HH", data[6:10])
            case "image/webp":
                return _webp_pixels(data)
            case "image/jpeg":
                return _jpeg_pixels(data)
    except (struct.error, IndexError):
        pass
    return None


def _webp_pixels(data: bytes) -> tuple[int, int] | None:
    """Read the size from any of the three kinds of chunk that can begin a WebP file (RFC 9649)."""
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if data[12:16] == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg_pixels(data: bytes) -> tuple[int, int] | None:
    """Read the size from the first start-of-frame segment (ITU T.81, B.2.2)."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes may precede a marker
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def why_refused(part_type: str, data: bytes) -> str | None:
    """The reason why this content is not sent: it is empty or exceeds a limit, with the values. None if it can be sent."""
    limit = MAX_BYTES[part_type]
    if not data or (data.startswith(b"%PDF-") and not data[8:64].strip()):
        return "it is empty"
    if len(data) > limit:
        return f"it has {len(data):,} bytes, and the limit is {limit:,}: make it smaller"
    width, height = (part_type == "image" and pixels_of(data)) or (0, 0)
    if max(width, height) > MAX_PIXELS:
        return f"it is {width:,} x {height:,} pixels, and the limit is {MAX_PIXELS:,} per side: make it smaller"
    return None
