"""`openagentic-sdk export ID`: a session in another program's format, with secrets masked by default."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ...errors import OptionsError
from ...ground.patterns import regex
from ...ground.text import printable
from ...parts.record.folds.export import to_json, to_markdown, to_messages, to_otlp
from ...parts.record.lifecycle import child_events
from ...permissions.redact import Redactor
from ..actions import add_list_flag
from ..exits import OK
from ..output.files import write_for_one
from ..stored.stores import NEWEST, add_id, add_store_flag, find_session, open_session_store

FORMATS = ("markdown", "json", "messages", "otlp", "record")
_EMAIL = regex(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("export", description="Write a session for people or for other programs.")
    add_id(parser, default=NEWEST)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="markdown",
        help="otlp is OpenTelemetry's JSON, record is a page that verifies itself (default: %(default)s)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write (default: standard output)")
    parser.add_argument("--content", action="store_true", help="otlp: include the arguments and results of tools")
    parser.add_argument("--redact", action="store_true", help="also mask e-mail addresses")
    parser.add_argument(
        "--no-redact", action="store_true", help="do not mask keys, tokens and secrets of this environment"
    )
    add_list_flag(parser, "--mask", metavar="REGEX", help="also mask matches of this pattern")
    add_store_flag(parser)


def run(args: argparse.Namespace) -> int:
    store = open_session_store(args.store)
    session_id = find_session(store, args.id)
    events = store.read_events(session_id)
    mask = build_mask(args.redact, args.mask, secrets=not args.no_redact)
    if args.format == "record":
        from ...viewer.page import build_record_page

        text = build_record_page(session_id, events)  # not masked: its digests would not match
    elif args.format == "markdown":
        text = to_markdown(events, mask)
    elif args.format == "otlp":
        tags = store.read_summary(session_id).tags
        spans = to_otlp(events, mask=mask, with_content=args.content, read=partial(child_events, store), tags=tags)
        text = json.dumps(spans) + "\n"
    else:
        value = to_messages(events, mask) if args.format == "messages" else to_json(events, mask)
        text = json.dumps(value, indent=1) + "\n"
    if args.output:
        write_for_one(Path(args.output), text)
    else:
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    return OK


def build_mask(emails: bool, patterns: Sequence[str], *, secrets: bool) -> Callable[[str], str] | None:
    """Create the function that masks a text; None if nothing is masked. Raises `OptionsError` for an invalid pattern."""
    own = []
    for pattern in patterns:
        try:
            own.append(re.compile(pattern))
        except re.error as error:
            raise OptionsError(f"--mask {pattern!r} is not a regular expression: {error}") from None
    if not emails and not own and not secrets:
        return None
    redactor = Redactor.from_environment(os.environ) if secrets else str

    def mask(text: str) -> str:
        text = redactor(text)
        if emails:
            text = _EMAIL.sub("[masked: e-mail]", text)
        for pattern in own:
            text = pattern.sub("[masked]", text)
        return text

    return mask
