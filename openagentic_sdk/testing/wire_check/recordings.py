"""Read recorded HTTP exchanges: vcr (Python, Ruby) and go-vcr in YAML or JSON, httprr, HAR, our own logs, saved streams.

A log contains exchanges if its requests had `keep_raw`. A saved stream is the output of `curl -N`, or a file with one JSON
chunk per line.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ...errors import OptionsError
from ...ground.disk import read_regular
from ...ground.frozen import frozen
from ...ground.loose import as_list, as_mapping, as_mappings, as_text
from ...ground.patterns import regex
from ...skills.yaml_subset import YamlReader

MAX_RECORDING_BYTES = 256 * 1024 * 1024
_BINARY = regex(r"!!?binary[ ]+")
_MARK = regex(r"[ ]++([&*])([\w-]+)")
_CONSTANTS = {"null": None, "~": None, "true": True, "false": False}
_INTEGER, _NUMBER = regex(r"[-+]?\d+"), regex(r"[-+]?\d+\.\d*(?:e[-+]?\d+)?")
_HTTPRR = regex(rb"(\d+) (\d+)\n")


@frozen
class Exchange:
    """One request and its answer. `request` is the JSON that was sent, `body` the answer's bytes, decompressed."""

    name: str
    url: str
    status: int
    headers: Mapping[str, str]
    request: Any
    body: bytes


class _CassetteReader(YamlReader):
    """A reader of cassettes' YAML: values have types, strings may be binary, and repeated values may be aliases."""

    def __init__(self, text: str) -> None:
        super().__init__(text, 1)
        self._marked: dict[str, Any] = {}

    def refuse(self, pattern: re.Pattern[str], reason: str) -> None:
        """Refuse nothing: the answers in cassettes contain lines of dashes and any other bytes of the recorded traffic."""

    def fail(self, reason: str) -> NoReturn:
        raise ValueError(f"line {self.line()}: {reason}")

    def check_depth(self, depth: int) -> None:
        if depth > 100:
            self.fail("more than 100 levels")

    def block_value(self, parent: int, depth: int, *, compact: bool) -> Any:
        mark = _MARK.match(self.text, self.pos)
        if mark is None:
            return super().block_value(parent, depth, compact=compact)
        self.pos = mark.end()
        if mark[1] == "&":
            self._marked[mark[2]] = value = super().block_value(parent, depth, compact=compact)
            return value
        self.finish_line()
        return self._marked.get(mark[2])

    def scalar(self, parent: int, depth: int) -> Any:
        if tag := _BINARY.match(self.text, self.pos):
            self.pos = tag.end()
            return base64.b64decode(str(super().scalar(parent, depth)))
        return super().scalar(parent, depth)

    def plain(self, indent: int) -> Any:
        return _typed(super().plain(indent))

    def flow_plain(self) -> Any:
        return _typed(super().flow_plain())


def read_recording(path: Path) -> Iterator[Exchange]:
    """Yield the exchanges in a file, in order. Raises `OptionsError` for a file of another kind, and `OSError`."""
    try:
        data = _unpacked(str(path), read_regular(path, MAX_RECORDING_BYTES))
        if data.startswith(b"httprr trace v1\n"):
            entries = _httprr(data)
        elif path.name.removesuffix(".gz").endswith((".yaml", ".yml")):
            text = data.decode("utf-8").replace("\r\n", "\n").removeprefix("---\n").rstrip().removesuffix("\n...")
            entries = _entries(_CassetteReader(f"{text}\n").read_document())
        else:
            entries = _of_text(data)
    except (ValueError, RecursionError) as error:
        raise OptionsError(f"{path} is not a supported recording ({error})") from None
    for number, (url, status, headers, request, body) in enumerate(entries, 1):
        lower = {str(key).lower(): _first(value) for key, value in headers.items()}
        name = f"{path}#{number}"
        yield Exchange(name, url, status, lower, _json_of(request or b""), _unpacked(name, body))


_RawExchange = tuple[str, int, Mapping[str, Any], Any, bytes]


def _of_text(data: bytes) -> Iterator[_RawExchange]:
    """The exchanges in a file whose suffix does not determine its format: a cassette, a HAR, a log or a stream."""
    text = data.decode("utf-8")
    try:
        document = json.loads(text)
    except ValueError:
        lines = [_json_or_none(line) for line in text.split("\n") if line.strip()]
        if lines and isinstance(as_mapping(lines[0]).get("seq"), int):
            return _logged([as_mapping(line) for line in lines])
        chunked = bool(lines) and all(isinstance(line, Mapping) for line in lines)
        return iter([("", 200, {}, None, body) for body in (_answers(lines) if chunked else [data])])
    if isinstance(document, Mapping) and {"interactions", "http_interactions", "log"} & document.keys():
        return _entries(document)
    return iter([("", 200, {}, None, data)])


def _entries(document: Mapping[str, Any]) -> Iterator[_RawExchange]:
    interactions = document.get("interactions") or document.get("http_interactions")
    entries = as_mappings(interactions if interactions is not None else as_mapping(document.get("log")).get("entries"))
    for entry in entries:
        request, response = as_mapping(entry.get("request")), as_mapping(entry.get("response"))
        url = as_text(request.get("uri")) or as_text(request.get("url"))
        status = response.get("status") if isinstance(response.get("status"), int) else response.get("code")
        code = as_mapping(response.get("status")).get("code", status)
        headers = response.get("headers")
        if isinstance(headers, list):
            headers = {as_text(one.get("name")): one.get("value") for one in as_mappings(headers)}
        request_body, response_body = _body(request), _body(response)
        yield url, code if isinstance(code, int) else 200, as_mapping(headers), request_body, response_body


def _body(message: Mapping[str, Any]) -> bytes:
    if "parsed_body" in message:
        return json.dumps(message["parsed_body"]).encode()
    body = message.get("body", message.get("content") or message.get("postData"))
    if isinstance(body, Mapping):
        if body.get("encoding") == "base64" or "base64_string" in body:
            return base64.b64decode(body.get("text") or body.get("base64_string") or "")
        body = body.get("string", body.get("text"))
    if isinstance(body, Mapping | list):
        return json.dumps(body).encode()
    return body if isinstance(body, bytes) else str("" if body is None else body).encode("utf-8", "replace")


def _logged(events: Sequence[Mapping[str, Any]]) -> Iterator[_RawExchange]:
    for event in events:
        if event.get("type") == "model.response" and event.get("raw"):
            raw = event["raw"]
            yield "", 200, {}, None, _as_stream(raw) if isinstance(raw, list) else json.dumps(raw).encode()


def _httprr(data: bytes) -> Iterator[_RawExchange]:
    """Yield the exchanges in a trace of Go's `httprr`: the sizes of a request and its answer, then both as sent."""
    at = data.index(b"\n") + 1
    while size := _HTTPRR.match(data, at):
        middle = size.end() + int(size[1])
        request, response = data[size.end() : middle], data[middle : middle + int(size[2])]
        at = middle + int(size[2])
        lines, _, request_body = request.partition(b"\r\n\r\n")
        head, _, body = response.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:] if ": " in line)
        if headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(re.findall(rb"[0-9a-f]+\r\n(.*?)\r\n(?=[0-9a-f]+\r\n)", body, re.S))
        url, status = lines.split(b" ", 2)[1].decode("latin-1"), int(head.split(b" ", 2)[1])
        yield url, status, headers, request_body, body


def _answers(chunks: Sequence[Any]) -> Iterator[bytes]:
    """Yield the streams in a list of chunks, which may contain several answers one after the other."""
    stream, ended = list[Any](), False
    for chunk in map(as_mapping, chunks):
        first = chunk.get("type") in ("message_start", "response.created")
        if stream and (first or (ended and chunk.get("id") != stream[-1].get("id"))):
            yield _as_stream(stream)
            stream, ended = [], False
        stream.append(chunk)
        ended = ended or any(choice.get("finish_reason") for choice in as_mappings(chunk.get("choices")))
    yield _as_stream(stream)


def _as_stream(chunks: Sequence[Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def _unpacked(name: str, body: bytes) -> bytes:
    try:
        unpacker = zlib.decompressobj(47)
        unpacked = unpacker.decompress(body, MAX_RECORDING_BYTES) if body.startswith(b"\x1f\x8b") else body
    except zlib.error:
        return body
    if unpacker.unconsumed_tail:
        raise OptionsError(f"{name} unpacks to more than {MAX_RECORDING_BYTES} bytes: split it")
    return unpacked if unpacker.eof or not body.startswith(b"\x1f\x8b") else body


def _typed(text: str) -> Any:
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text) and len(text) < 4000:
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _first(value: Any) -> str:
    return str((as_list(value) or [""])[0] if isinstance(value, list) else value)


def _json_of(data: bytes) -> Any:
    return _json_or_none(data.decode("utf-8", "replace"))


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError, binascii.Error):
        return None
