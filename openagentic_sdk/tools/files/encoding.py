"""Detect the encoding of a text file, or the type of a file that is not text.

A byte order mark decides, otherwise UTF-8, otherwise Latin-1: every file can be decoded, and encoded again without loss.
"""

from __future__ import annotations

import codecs

from ...ground.frozen import frozen

HEAD_BYTES = 8_192


@frozen
class Encoding:
    """A codec's name, the byte order mark before the text, and a note for the reader, empty for plain UTF-8."""

    codec: str
    bom: bytes = b""
    note: str = ""


UTF8 = Encoding("utf-8")
LATIN1 = Encoding("latin-1", note="not valid UTF-8: read as Latin-1")
# UTF-32 comes first, because its byte order mark starts with that of UTF-16.
_MARKED = (
    Encoding("utf-32-le", codecs.BOM_UTF32_LE, "UTF-32 text"),
    Encoding("utf-32-be", codecs.BOM_UTF32_BE, "UTF-32 text"),
    Encoding("utf-16-le", codecs.BOM_UTF16_LE, "UTF-16 text"),
    Encoding("utf-16-be", codecs.BOM_UTF16_BE, "UTF-16 text"),
    Encoding("utf-8", codecs.BOM_UTF8, "UTF-8 text with a byte order mark"),
)


def marked_encoding(head: bytes) -> Encoding | None:
    """The encoding of a leading byte order mark, or None without one."""
    return next((encoding for encoding in _MARKED if head.startswith(encoding.bom)), None)


def is_binary(head: bytes) -> bool:
    """Whether the first bytes of a file are not text: a NUL that no byte order mark explains, or a PDF's signature."""
    return (b"\0" in head and marked_encoding(head) is None) or head.startswith(b"%PDF-")


def decode(data: bytes) -> tuple[str, Encoding]:
    """The text without its byte order mark, and how to encode it again."""
    marked = marked_encoding(data)
    for encoding in (marked, UTF8) if marked else (UTF8,):
        try:
            return data[len(encoding.bom) :].decode(encoding.codec), encoding
        except UnicodeDecodeError:
            continue
    return data.decode(LATIN1.codec), LATIN1


def encode(text: str, encoding: Encoding) -> bytes:
    """Encode a text, including its byte order mark. Raises `UnicodeEncodeError` for unsupported characters."""
    return encoding.bom + text.encode(encoding.codec)


_BINARIES = (
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive (or an office document, jar or wheel)"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\0", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstandard data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-zip archive"),
    (b"\x7fELF", "an ELF program or library"),
    (b"MZ", "a Windows program or library"),
    (b"\xcf\xfa\xed\xfe", "a Mach-O program or library"),
    (b"\xca\xfe\xba\xbe", "a Java class or a Mach-O program"),
    (b"\0asm", "a WebAssembly module"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"OggS", "Ogg audio or video"),
    (b"ID3", "MP3 audio"),
    (b"fLaC", "FLAC audio"),
    (b"\0\0\1\0", "an icon"),
    (b"BM", "a bitmap image"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"wOFF", "a font"),
    (b"wOF2", "a font"),
)


def binary_kind(head: bytes) -> str:
    """The kind of a binary file, in words, by its first bytes."""
    if head[4:8] == b"ftyp":
        return "MP4 audio or video"
    return next((kind for start, kind in _BINARIES if head.startswith(start)), "binary data")
