"""The time that a browser needs to show a session of 10,000 events.

Needs Chromium and playwright (the dev extra); without them nothing is measured. The floor is an empty page.

A frame of scrolling costs the page's thread 5 ms (0.5 layout, 1.6 style, the rest painting), of the 16.7 ms that a
screen leaves for it, and an empty page 0.6. With each of the 3,333 blocks as a child of the scrolling element, instead
of in groups of 50, it cost 28.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

from openagentic_sdk.events import (
    AssistantMessage,
    Event,
    ModelRequest,
    ModelResponse,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from openagentic_sdk.serialization import dumps_event
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.viewer.page import build_page

from . import Row, best_s

EVENTS = 10_000
_EMPTY = """<!doctype html><style>#conversation{height:600px;overflow-y:auto}.block{height:400000px}</style>
<div id=conversation><div class=block>x</div></div>"""
# Scroll 150 frames, one wheel notch each, and report how long the slower ones took.
_SCROLL = """() => new Promise((done) => {
  const box = document.getElementById("conversation"), times = [], step = 120;
  let last = null;
  const frame = (now) => {
    if (last !== null) times.push(now - last);
    last = now;
    box.scrollTop += step;
    if (times.length < 150) requestAnimationFrame(frame);
    else done(times.sort((a, b) => a - b)[Math.floor(times.length * 0.95)]);
  };
  requestAnimationFrame(frame);
})"""
_TEXT = "some text of a usual length, as tools and models write it " * 4


def rows() -> list[Row]:
    events = _events()
    page, as_json = (build_page(events, title="benchmark"), "\n".join(map(dumps_event, events)))
    build_s = best_s(lambda: build_page(events, title="benchmark"), repeats=3)
    json_s = best_s(lambda: [dumps_event(event) for event in events], repeats=3)
    result = [
        Row(
            f"building the page of {EVENTS:,} events", build_s * 1000, "ms", build_s / json_s, "as JSON", "ratio <= 30"
        ),
        Row("its size", len(page) / 1e6, "MB", len(page) / len(as_json), "as JSON", "ratio <= 1.5"),
    ]
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None or importlib.util.find_spec("playwright") is None:
        return result
    (empty_ms, empty_frame_ms), (shown_ms, frame_ms) = _in_browser(chromium, [_EMPTY, page])
    frames = "p95 of a frame while it scrolls"
    return [
        *result,
        Row(f"a browser shows {EVENTS:,} events", shown_ms, "ms", shown_ms / empty_ms, "an empty page", "ratio <= 20"),
        Row(frames, frame_ms, "ms", frame_ms / empty_frame_ms, "an empty page", "ratio <= 2"),
    ]


def _events() -> list[Event]:
    store = MemorySessionStore()
    session_id = store.create_session()
    events: list[Any] = [SystemInit(session_id, "/", "0", model="m"), UserMessage("go")]
    step = 0
    while len(events) + 6 <= EVENTS:
        step += 1
        call = f"c{step}"
        events += [
            ModelRequest(step, 1, "0" * 64, step),
            ModelResponse(step, 1, usage={"input_tokens": step, "output_tokens": 9}, model="m"),
            AssistantMessage(_TEXT),
            ToolUse(call, "Read", {"file_path": _TEXT}),
            ToolStarted(call, "Read", "read", "0" * 64, call),
            ToolResult(call, {"content": _TEXT}),
        ]
    store.append_events(session_id, events)
    return store.read_events(session_id)


def _in_browser(chromium: str, pages: list[str]) -> list[tuple[float, float]]:
    """For each page the milliseconds from the start of the navigation until it is complete, the best of three, and of a
    frame.
    """
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        result = []
        for number, text in enumerate(pages):
            file = Path(folder, f"{number}.html")
            file.write_text(text, encoding="utf-8")
            times = [_shown_and_scrolled_ms(browser, file.as_uri()) for _ in range(3)]
            result.append((min(shown for shown, _ in times), min(frame for _, frame in times)))
        browser.close()
    return result


def _shown_and_scrolled_ms(browser: Any, address: str) -> tuple[float, float]:
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector(".block")
    shown: float = page.evaluate("performance.now()")
    frame: float = page.evaluate(_SCROLL)
    page.close()
    return shown, frame
