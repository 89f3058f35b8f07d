"""The cost of a stream: chunks per second, time to the first piece and memory, compared with the `openai` package if
installed.

A server in a separate process sends chat completions over loopback, each chunk as one HTTP chunk: in bursts at full speed,
or paced. Each client runs in a separate process. Without the `openai` package the floor is a bare asyncio client that reads
the same bytes and only calls `json.loads` for each line.

    python3 -m benchmarks wire
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from . import Row, best_s, peak_mb, resident_mb

BURST_CHUNKS = 600
PACED_CHUNKS = 20
PACE_S = 0.02
CONCURRENCIES = (1, 16, 64)
ROUNDS = 3
PARSED_LINES = 20_000
_ROOT = Path(__file__).resolve().parents[1]
_HELLO = [{"role": "user", "content": "hi"}]


def rows() -> list[Row]:
    found = [_parse_row(), _long_line_row()]
    other = "openai" if importlib.util.find_spec("openai") else "bare"
    floor = "the openai package" if other == "openai" else "asyncio streams and json.loads"
    with _server() as url:
        for concurrency in CONCURRENCIES:
            found += _stream_rows(url, concurrency, other, floor)
        memory = _client("ours", url, 64, "burst")["memory_mb"]
        found.append(Row("memory that 64 streams add", memory, "MB", bar="value <= 20"))
    return found


def _parse_row() -> Row:
    from openagentic_sdk.providers.openai import ChatReading
    from openagentic_sdk.providers.openai_stream_assembler import ChatAssembler
    from openagentic_sdk.providers.wire.exchange import BodyReader

    lines = [json.dumps(_chunk(n, " hello")) for n in range(PARSED_LINES)]
    body = "".join(f"data: {line}\n\n" for line in lines).encode()

    def parse() -> None:
        reader, reading = BodyReader(), ChatReading(ChatAssembler())
        for start in range(0, len(body), 16_384):
            reading.take(reader.feed(body[start : start + 16_384]))

    took, floor = best_s(parse), best_s(lambda: [json.loads(line) for line in lines])
    per_second = PARSED_LINES / took
    return Row(
        "delta lines parsed and assembled", per_second, "/s", took / floor, "json.loads of the lines", "ratio <= 5"
    )


def _long_line_row() -> Row:
    """Compare a line of eight megabytes with eight lines of one: nothing may scan its beginning again and again."""
    from openagentic_sdk.providers.sse import SSEDecoder

    def decode(lines: int) -> None:
        decoder, piece = SSEDecoder(), b"x" * 4096
        for _ in range(lines):
            decoder.feed(b"data: ")
            for _ in range(8 * 1024 * 1024 // 4096 // lines):
                decoder.feed(piece)
            decoder.feed(b"\n\n")

    took, floor = best_s(lambda: decode(1)), best_s(lambda: decode(8))
    return Row("an event line of 8 MB", took * 1000, "ms", took / floor, "eight lines of 1 MB", "ratio <= 5")


def _stream_rows(url: str, concurrency: int, other: str, floor: str) -> list[Row]:
    ours: dict[str, list[float]] = {"rate": [], "first_ms": []}
    theirs: dict[str, list[float]] = {"rate": [], "first_ms": []}
    for _ in range(ROUNDS):  # in turns, so that a busy moment affects both
        for name, figures in (("ours", ours), (other, theirs)):
            figures["rate"].append(_client(name, url, concurrency, "burst")["rate"])
            figures["first_ms"].append(_client(name, url, concurrency, "paced")["first_ms"])
    rate, first = statistics.median(ours["rate"]), statistics.median(ours["first_ms"])
    rate_ratio = rate / statistics.median(theirs["rate"])
    first_ratio = first / statistics.median(theirs["first_ms"])
    promised = other == "openai"
    return [
        Row(f"chunks, {concurrency} streams", rate, "/s", rate_ratio, floor, "ratio >= 1" if promised else ""),
        Row(f"first piece, {concurrency} streams", first, "ms", first_ratio, floor, "ratio <= 1" if promised else ""),
    ]


def _client(name: str, url: str, concurrency: int, pace: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.wire", name, f"{url}/{pace}/v1", str(concurrency)]
    output = subprocess.run(command, check=True, capture_output=True, cwd=_ROOT, text=True).stdout
    figures: dict[str, float] = json.loads(output)
    return figures


# --- the server, in a process of its own -----------------------------------------------------------------------------


@contextmanager
def _server() -> Any:
    command = [sys.executable, "-m", "benchmarks.wire", "server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=_ROOT, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def _chunk(n: int, content: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish}
    frame = {"id": "chatcmpl-123", "object": "chat.completion.chunk", "created": n, "model": "m", "service_tier": "x"}
    return {**frame, "system_fingerprint": "fp_0123456789", "choices": [choice]}


def _event(chunk: dict[str, Any] | str) -> bytes:
    data = chunk if isinstance(chunk, str) else json.dumps(chunk)
    event = f"data: {data}\n\n".encode()
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            paced = b"/paced/" in head.split(b"\r\n")[0]
            await _send_chunks(writer, paced)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _send_chunks(writer: asyncio.StreamWriter, paced: bool) -> None:
    event = _event(_chunk(1, " hello"))
    for _ in range(PACED_CHUNKS if paced else BURST_CHUNKS):
        writer.write(event)
        await writer.drain()
        if paced:
            await asyncio.sleep(PACE_S)
    writer.write(_event(_chunk(1, "", "stop")) + _event("[DONE]") + b"0\r\n\r\n")
    await writer.drain()


async def _run_server() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# --- the clients, each in a process of its own -----------------------------------------------------------------------


class _Ours:
    def __init__(self, url: str) -> None:
        from openagentic_sdk.providers.base import TextDelta
        from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider

        self._provider = OpenAICompatibleProvider(base_url=url, api_key="k")
        self._text = TextDelta

    async def pieces(self) -> AsyncIterator[str]:
        async for event in self._provider.stream(model="m", messages=_HELLO):
            if isinstance(event, self._text):
                yield event.delta


class _OpenAI:
    def __init__(self, url: str) -> None:
        openai: Any = importlib.import_module("openai")  # not a dependency of this package

        self._client = openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0)

    async def pieces(self) -> AsyncIterator[str]:
        messages: Any = _HELLO
        stream = await self._client.chat.completions.create(model="m", messages=messages, stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content


class _Bare:
    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)

    async def pieces(self) -> AsyncIterator[str]:
        reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        body = json.dumps({"model": "m", "messages": _HELLO, "stream": True}).encode()
        head = f"POST {self._url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        while not (line := await reader.readline()).startswith(b"data: [DONE]"):
            if line.startswith(b"data: "):
                content: str = json.loads(line[6:])["choices"][0]["delta"]["content"]
                if content:
                    yield content
        writer.close()


async def _one_stream(client: Any) -> tuple[int, float]:
    began, first, count = time.perf_counter(), 0.0, 0
    async for _ in client.pieces():
        first = first or time.perf_counter() - began
        count += 1
    return count, first


async def _measure(name: str, url: str, concurrency: int) -> dict[str, float]:
    client = {"ours": _Ours, "openai": _OpenAI, "bare": _Bare}[name](url)
    await _one_stream(client)  # imports, the first connection
    memory = resident_mb()
    began = time.perf_counter()
    results = await asyncio.gather(*(_one_stream(client) for _ in range(concurrency)))
    took = time.perf_counter() - began
    chunks = sum(count for count, _ in results)
    first = statistics.median(first for _, first in results)
    return {"rate": chunks / took, "first_ms": first * 1000, "memory_mb": peak_mb() - memory}


if __name__ == "__main__":
    if sys.argv[1] == "server":
        asyncio.run(_run_server())
    else:
        print(json.dumps(asyncio.run(_measure(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
