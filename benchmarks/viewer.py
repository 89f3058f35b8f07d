"""How long a browser needs to show a session of 10,000 events.

Needs Chromium and playwright (the dev extra); without them there is nothing to measure. The floor is an empty page.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

from openagentic_sdk.events import (
    AssistantMessage,
    ModelRequest,
    ModelResponse,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.viewer.page import build_page

from . import Row, best_s

EVENTS = 10_000
_TEXT = "some text of a usual length, as tools and models write it " * 4


def rows() -> list[Row]:
    page = _page()
    build_ms = best_s(_page, repeats=3) * 1000
    result = [Row(f"building the page of {EVENTS:,} events", build_ms, "ms"), Row("its size", len(page) / 1e6, "MB")]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        return result
    empty_ms, shown_ms = _in_browser(chromium, ["<!doctype html><div class=row>", page])
    bar = "value <= 2000"
    return [
        *result,
        Row(f"a browser shows {EVENTS:,} events", shown_ms, "ms", shown_ms / empty_ms, "an empty page", bar),
    ]


def _page() -> str:
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
    return build_page(store.iter_events(session_id), title="benchmark")


def _in_browser(chromium: str, pages: list[str]) -> list[float]:
    """Milliseconds from the start of the navigation until rows stand in the page, the best of three, for each page."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        result = []
        for number, text in enumerate(pages):
            file = Path(folder, f"{number}.html")
            file.write_text(text, encoding="utf-8")
            result.append(min(_shown_after_ms(browser, file.as_uri()) for _ in range(3)))
        browser.close()
    return result


def _shown_after_ms(browser: Any, address: str) -> float:
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector(".row")
    shown: float = page.evaluate("performance.now()")
    page.close()
    return shown
