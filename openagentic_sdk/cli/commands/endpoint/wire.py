"""`openagentic-sdk wire check FILE...`: check how recorded exchanges are read, whole and truncated at every point."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ....errors import OptionsError
from ....ground.words import plural
from ....testing.wire_check.check import CheckedExchange, check_exchange
from ....testing.wire_check.habits import PROFILES
from ....testing.wire_check.recordings import read_recording
from ...actions import ActionList
from ...exits import FAILED, OK
from ...output.terminal import Screen

_SUFFIXES = (".yaml", ".yml", ".json", ".jsonl", ".har", ".httprr", ".sse", ".chunks.txt")
_ABOUT = """Read recorded exchanges with a model's endpoint as a run would read them, and report the differences. Each answer
is read whole, byte by byte, and truncated after every event; the request that would send it back is checked against the
vendor's rules.

Supported formats: cassettes of vcr (Python, Ruby) and go-vcr, httprr, HAR files of a browser or proxy, logs of sessions
whose requests had keep_raw, a stream as curl saves it. A folder means all recordings below it.

Each line of output is one difference:

  bytes    the answer differs if it is read byte by byte
  reading  the text or the calls differ from what the protocol's documentation prescribes for the same bytes
  cut      a stream that ends here would run a call, or produce a text, that the whole one does not
  request  the vendor would refuse the following request; the rule names its source and date
  refused  (no difference) the answer is incomplete, and the error gives the reason
  habit    (no difference) the vendor's behaviour is not in its profile yet

Exit code 1 if there is a difference, a file cannot be read, or there is no answer to check."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("wire", description="Check what endpoints send, from recordings.")
    check = ActionList(parser).add("check", _check, "check recorded exchanges with endpoints")
    check.description = _ABOUT
    check.add_argument("recordings", metavar="FILE", nargs="+", type=Path, help="a recording, or a folder of them")
    check.add_argument("--json", action="store_true", help="print what was checked as one JSON object")


def run(args: argparse.Namespace) -> int:
    code: int = args.run_action(args)
    return code


def _check(args: argparse.Namespace) -> int:
    screen, progress = Screen(sys.stdout), Screen(sys.stderr)
    files = list(_files(args.recordings))
    checked, unreadable = list[CheckedExchange](), list[str]()
    for number, path in enumerate(files, 1):
        if progress.can_rewrite:
            progress.rewrite(f"{number} of {len(files)}: {path}")
        try:
            results = [one for exchange in read_recording(path) if (one := check_exchange(exchange)) is not None]
        except OptionsError as error:
            results = []
            unreadable.append(str(error))
        checked += results
        if not args.json:
            lines = [line for one in results for line in _lines(one)]
            if lines and progress.can_rewrite:
                progress.rewrite("")
            screen.lines(lines)
    if progress.can_rewrite:
        progress.rewrite("")
    if not checked and not unreadable:
        names = ", ".join(map(str, args.recordings))
        unreadable.append(f"no answer of a model's endpoint was found in {names}: --help lists the supported formats")
    totals = _totals(files, checked, unreadable)
    screen.tell(
        args.json,
        {**totals, "answers": [asdict(one) for one in checked], "unreadable": unreadable},
        [
            *(f"unreadable: {one}" for one in unreadable),
            *(f"{vendor}: {', '.join(habits)}" for vendor, habits in totals["habits"].items() if habits),
            _summary(totals),
        ],
    )
    return FAILED if totals["different"] or unreadable else OK


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            below = (one for one in sorted(path.rglob("*")) if one.is_file())
            yield from (one for one in below if one.name.removesuffix(".gz").endswith(_SUFFIXES))
        elif path.is_file():
            yield path
        else:
            raise OptionsError(f"the recording {str(path)!r} does not exist: name a file, or a folder of them")


def _lines(one: CheckedExchange) -> Iterator[str]:
    for difference in one.differences:
        yield f"{one.name}: {difference.kind}: {difference.detail}"
    if one.refusal is not None:
        yield f"{one.name}: refused: {one.refusal}"
    for habit in one.new_habits:
        yield f"{one.name}: habit: {habit!r} is new for {one.vendor} (profile of {PROFILES[one.vendor or '']['read']})"


def _totals(files: Sequence[Path], checked: Sequence[CheckedExchange], unreadable: Sequence[str]) -> dict[str, Any]:
    kinds = Counter(difference.kind for one in checked for difference in one.differences)
    return {
        "files": max(0, len(files) - len(unreadable)),
        "protocols": dict(Counter(one.protocol for one in checked)),
        "events": sum(one.events for one in checked),
        "cuts": sum(one.cuts for one in checked),
        "refused": sum(one.refusal is not None for one in checked),
        "different": sum(kinds.values()),
        "kinds": dict(kinds),
        "habits": {
            vendor: sorted({habit for one in checked if one.vendor == vendor for habit in one.habits})
            for vendor in sorted({one.vendor for one in checked if one.vendor})
        },
    }


def _summary(totals: dict[str, Any]) -> str:
    answers = sum(totals["protocols"].values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in totals["kinds"].items())
    counts = f"{plural(answers, 'answer')} in {plural(totals['files'], 'file')}, {plural(totals['cuts'], 'cut')}"
    text = f"{counts}: {totals['different']} different"
    return f"{text} ({kinds})" if kinds else text
