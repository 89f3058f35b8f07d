"""Encode trace requests as protobuf, OTLP's usual encoding: from the JSON form, by tables of field numbers.

The numbers are from `opentelemetry-proto` (trace, common, resource and collector/trace, each `v1`); the wire format is from
protobuf.dev/programming-guides/encoding. The tables contain only what `folds.spans` writes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

# By JSON name: the field number, and its type (text, hex, fixed64, varint, double) or the table of its fields.
MessageFields = Mapping[str, tuple[int, Any]]

_VALUE: dict[str, tuple[int, Any]] = {
    "stringValue": (1, "text"),
    "boolValue": (2, "varint"),
    "intValue": (3, "varint"),
    "doubleValue": (4, "double"),
}
_VALUE["arrayValue"] = 5, {"values": (1, _VALUE)}
_ATTRIBUTE: MessageFields = {"key": (1, "text"), "value": (2, _VALUE)}
_EVENT: MessageFields = {"timeUnixNano": (1, "fixed64"), "name": (2, "text"), "attributes": (3, _ATTRIBUTE)}
_SPAN: MessageFields = {
    "traceId": (1, "hex"),
    "spanId": (2, "hex"),
    "parentSpanId": (4, "hex"),
    "name": (5, "text"),
    "kind": (6, "varint"),
    "startTimeUnixNano": (7, "fixed64"),
    "endTimeUnixNano": (8, "fixed64"),
    "attributes": (9, _ATTRIBUTE),
    "events": (11, _EVENT),
    "status": (15, {"message": (2, "text"), "code": (3, "varint")}),
}
_SCOPE: MessageFields = {"name": (1, "text"), "version": (2, "text")}
_SCOPE_SPANS: MessageFields = {"scope": (1, _SCOPE), "spans": (2, _SPAN), "schemaUrl": (3, "text")}
_RESOURCE_SPANS: MessageFields = {"resource": (1, {"attributes": (1, _ATTRIBUTE)}), "scopeSpans": (2, _SCOPE_SPANS)}
REQUEST: MessageFields = {"resourceSpans": (1, _RESOURCE_SPANS)}


def encode(message: Mapping[str, Any], fields: MessageFields = REQUEST) -> bytes:
    """Encode an OTLP/JSON message as protobuf. Raises `KeyError` for a field that is not in the tables."""
    parts = []
    for name, value in message.items():
        number, kind = fields[name]
        for each in value if isinstance(value, list) else (value,):
            parts.append(_field(number, kind, each))
    return b"".join(parts)


def _field(number: int, kind: Any, value: Any) -> bytes:
    if kind == "varint":
        return _varint(number << 3) + _varint(int(value) & 0xFFFF_FFFF_FFFF_FFFF)
    if kind == "fixed64":
        return _varint(number << 3 | 1) + struct.pack("<Q", int(value))
    if kind == "double":
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    data: bytes
    if kind == "text":
        data = value.encode("utf-8", "replace")
    else:
        data = bytes.fromhex(value) if kind == "hex" else encode(value, kind)
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield a message's fields by number: varints as integers, others as bytes. Raises `ValueError` for invalid input."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ValueError("a varint is not terminated")
            value |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or (varint() if key & 7 == 2 else -1)
        if size < 0 or at + size > len(data):
            raise ValueError("this is not a protobuf message")
        at += size
        yield key >> 3, data[at - size : at]
