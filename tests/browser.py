"""Chromium for the tests of pages, with playwright (extra `dev`)."""

from __future__ import annotations

import shutil
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Debian's build without windows comes first: it takes half the processor time for the same page.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]

needs_browser = unittest.skipIf(
    sync_playwright is None or CHROMIUM is None, "the browser test needs playwright (dev extra) and Chromium"
)


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield started
        finally:
            started.close()
