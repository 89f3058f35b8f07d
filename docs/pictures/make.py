"""Make the pictures of the documentation: a terminal through tmux, and pages through Chromium.

    python3 docs/pictures/make.py

It plays a scripted session with the real command, in temporary folders. Needs tmux and chromium. A terminal
becomes SVG (rows of text with their colours), a page PNG. Look at each picture before you commit it.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COLUMNS, ROWS = 88, 44
PATIENCE_S = 60.0
CELL, LINE, PAD = 8.0, 18, 14
BACK, FORE = "#16191d", "#dfe3e8"
# The sixteen colours of a terminal, as xterm's dark themes have them.
COLOURS = ["#16191d", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#abb2bf"]
WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\U0001f300-\U0001faff]"
)

PRICE = '''"""Prices of the shop."""

TAX = 0.19


def price(net):
    return net * (1 + TAX)
'''
TEST = """import unittest

from price import price


class PriceTest(unittest.TestCase):
    def test_prices_have_two_digits(self):
        self.assertEqual(price(10.09), 12.01)
"""
TODOS = ["Look at price.py", "Round to two digits", "Run the tests"]


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"name": name, "arguments": arguments}


def todos(done: int) -> dict[str, object]:
    states = ["completed"] * done + ["in_progress"] + ["pending"] * len(TODOS)
    return call(
        "TodoWrite", todos=[{"content": text, "status": state} for text, state in zip(TODOS, states, strict=False)]
    )


TURNS = [
    {
        "text": "I will look at the code first, then change **one line** and run the tests.",
        "tool_calls": [todos(0), call("Read", file_path="price.py"), call("Grep", query="price[(]")],
    },
    {
        "text": "`price()` never rounds.",
        "tool_calls": [
            todos(1),
            call("Edit", file_path="price.py", old="return net * (1 + TAX)", new="return round(net * (1 + TAX), 2)"),
        ],
    },
    {"tool_calls": [todos(2), call("Bash", command="python3 -m unittest -v")]},
    {
        "text": "## Done\n\nPrices have two digits now, and the test passes.\n\n| net | before | now |\n|---:|---:|---:|\n"
        "| 10.09 | 12.0071 | 12.01 |\n| 5.00 | 5.95 | 5.95 |\n\nOnly `price.py` was changed:\n\n"
        "```python\nreturn round(net * (1 + TAX), 2)\n```\n",
        "tool_calls": [todos(3)],
    },
    {"text": "`/undo` takes it back, the file too."},
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(Path(folder))
        try:
            terminal.start()
            terminal.type("Prices have too many digits. Fix it, please.")
            terminal.until("[y] yes")
            (HERE / "question.svg").write_text(svg(terminal.screen()), encoding="utf-8")
            terminal.keys("y", "Enter")
            terminal.until("unittest -v\n")
            terminal.keys("y", "Enter")
            terminal.until("Ended:")
            (HERE / "chat.svg").write_text(svg(terminal.screen()), encoding="utf-8")
        finally:
            terminal.tmux("kill-server")
        take_pages(Path(folder))


class Terminal:
    """`chat` in its own tmux server, with its own project and home folder."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "ada"
        self.work = self.home / "shop"
        self.work.mkdir(parents=True)
        (self.work / "price.py").write_text(PRICE)
        (self.work / "test_price.py").write_text(TEST)
        (folder / "script.json").write_text(json.dumps({"turns": TURNS}))
        self._socket, self._script = folder / "tmux", folder / "script.json"

    def start(self) -> None:
        environ = {**environment(self.home), "COLORTERM": "truecolor"}
        assigned = shlex.join(f"{name}={value}" for name, value in environ.items() if os.environ.get(name) != value)
        words = [sys.executable, "-m", "openagentic_sdk", "chat", "--script", str(self._script)]
        line = f"cd {shlex.quote(str(self.work))} && exec env {assigned} {shlex.join(words)}"
        self.tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), line)
        self.until("\n>")

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", os.devnull, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)
        self.keys("Enter")

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-e")

    def until(self, wanted: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in (seen := self.tmux("capture-pane", "-p")):
            if time.monotonic() > deadline:
                raise SystemExit(f"{wanted!r} never came; the screen is\n{seen}")
            time.sleep(0.05)


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OPENAGENTIC_SDK_HOME": str(home / "sdk"), "HOME": str(home)}


# --- a terminal as SVG ---------------------------------------------------------------------------------------------------


def svg(screen: str) -> str:
    """Draw the output of `capture-pane -e`: each run of characters of one style is one text at its column."""
    lines = screen.rstrip("\n").split("\n")
    width, height = COLUMNS * CELL + 2 * PAD, len(lines) * LINE + 2 * PAD
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACK}"/>',
        f'<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13" fill="{FORE}">',
    ]
    style: dict[str, str] = {}
    for row, line in enumerate(lines):
        top = PAD + row * LINE
        for column, text, look in runs(line, style):
            left, wide = PAD + column * CELL, columns_of(text) * CELL
            if "back" in look:
                parts.append(f'<rect x="{left:g}" y="{top}" width="{wide:g}" height="{LINE}" fill="{look["back"]}"/>')
            left += (len(text) - len(text.lstrip(" "))) * CELL
            if text := text.strip(" "):
                named = "".join(f' {name}="{value}"' for name, value in look.items() if name != "back")
                named = f'x="{left:g}" y="{top + 13}" textLength="{columns_of(text) * CELL:g}"{named}'
                parts.append(f"<text {named}>{html.escape(text.replace(' ', chr(160)), quote=False)}</text>")
    return "\n".join([*parts, "</g>", "</svg>", ""])


def runs(line: str, style: dict[str, str]) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Yield each run of one style: its column, its text, its attributes. `style` carries over from row to row."""
    column = 0
    for place, part in enumerate(re.split("\x1b\\[([0-9;]*)m", line)):
        if place % 2:
            change(style, [int(code or 0) for code in part.split(";")])
        elif part:
            look = dict(style)
            if look.pop("reverse", None):
                look["back"], look["fill"] = look.get("fill", FORE), look.get("back", BACK)
            yield column, part, look
            column += columns_of(part)


def change(style: dict[str, str], codes: list[int]) -> None:
    """Apply select-graphic-rendition codes to a style (ECMA-48, 8.3.117)."""
    while codes:
        code = codes.pop(0)
        if code == 0:
            style.clear()
        elif code in (1, 2, 3, 4, 7):
            name, value = (
                {1: "font-weight", 2: "opacity", 3: "font-style", 4: "text-decoration", 7: "reverse"}[code],
                "",
            )
            value = {1: "bold", 2: "0.6", 3: "italic", 4: "underline", 7: "yes"}[code]
            style[name] = value
        elif 30 <= code <= 37 or 40 <= code <= 47:
            style["fill" if code < 40 else "back"] = COLOURS[code % 10]
        elif code in (38, 48) and codes[:1] == [2]:
            style["fill" if code == 38 else "back"] = "#{:02x}{:02x}{:02x}".format(*codes[1:4])
            del codes[:4]
        elif code in (39, 49):
            style.pop("fill" if code == 39 else "back", None)


def columns_of(text: str) -> int:
    return sum(2 if WIDE.match(letter) else 1 for letter in text)


# --- pages ---------------------------------------------------------------------------------------------------------------


def take_pages(folder: Path) -> None:
    """Take pictures of the page of the session that was played, light and dark."""
    page = folder / "page.html"
    words = [sys.executable, "-m", "openagentic_sdk", "view", "newest", "-o", str(page)]
    subprocess.run(words, env=environment(folder / "ada"), check=True, stdout=subprocess.DEVNULL)
    data = json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])
    place = next(event["seq"] for event in data["events"] if event["type"] == "tool.use" and event["name"] == "Edit")
    for name, *flags in (("page",), ("page-dark", "--force-dark-mode")):
        shot(f"{page.as_uri()}#{place}", HERE / f"{name}.png", folder, *flags)


def shot(address: str, target: Path, folder: Path, *flags: str) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("there is no Chromium here, which draws the pages: install it")
    quiet = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'browser'}",
    ]
    size = ["--window-size=1000,860", "--virtual-time-budget=2000"]
    command = [chromium, *quiet, *size, *flags, f"--screenshot={target}", address]
    subprocess.run(command, check=True, timeout=PATIENCE_S, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
