"""`sessions sign` and `sessions verify --signed`: sign a session's record, and verify signatures."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import OptionsError, SessionError
from ...events import Event
from ...ground.disk import read_named
from ...ground.system import reason_of
from ...ground.text import on_one_line
from ...ground.words import plural
from ...parts.record.bundle import read_bundle
from ...parts.record.sign import sign_session
from ...parts.record.signers import InstallationKey, SshKey, Timestamp, Trust, Voucher, Witness
from ...parts.record.verify import RecordReport, receipt_of, verify_record
from ...serialization import loads_json
from ...sessions.base import SessionStore
from ...sessions.seal import Seal, Signer
from ..actions import ActionList, add_list_flag
from ..exits import FAILED, OK
from ..output.terminal import Screen
from .stores import NEWEST, add_id, find_session

_MAX_RECEIPT_BYTES = 1 << 20


def add_actions(actions: ActionList) -> None:
    """Add `sign` to the command line."""
    sign = actions.add("sign", _sign, "append a signed checkpoint of a session's events so far")
    sign.epilog = (
        "Without a flag, the key of this installation signs. With --json it prints a receipt: keep it elsewhere."
    )
    add_id(sign, default=NEWEST)
    sign.add_argument("--installation", action="store_true", help="sign with the key of this installation")
    add_list_flag(sign, "--ssh-key", metavar="FILE", help="sign with a person's key (ssh-keygen)")
    sign.add_argument("--witness", metavar="COMMAND", help="a command that reads the statement and returns a token")
    sign.add_argument(
        "--timestamp",
        metavar="COMMAND",
        help="a command that reads an RFC 3161 request and returns the reply, for instance curl",
    )
    sign.add_argument("--json", action="store_true", help="print the receipt as one JSON object")


def add_trust_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `verify` that name the keys to check a signed record with."""
    parser.add_argument(
        "--signed", action="store_true", help="show which events are signed, and by whom; ID may be an exported file"
    )
    parser.add_argument(
        "--allowed-signers", metavar="FILE", help="with --signed: the accepted ssh keys, see ssh-keygen(1)"
    )
    parser.add_argument(
        "--timestamp-ca", metavar="FILE", help="with --signed: certificates of time stamping authorities (PEM)"
    )
    parser.add_argument(
        "--witness",
        metavar="COMMAND",
        help="with --signed: a command that checks a witness's token (exit code 0: valid)",
    )
    add_list_flag(parser, "--receipt", metavar="FILE", help="with --signed: the output of `sign --json`")
    parser.add_argument("--json", action="store_true", help="print one JSON object per session")


def _sign(store: SessionStore, args: argparse.Namespace) -> int:
    signers: list[Signer] = [SshKey(path) for path in args.ssh_key]
    if args.witness:
        signers.append(Witness(shlex.split(args.witness)))
    if args.timestamp:
        signers.append(Timestamp(shlex.split(args.timestamp)))
    if args.installation or not signers:
        signers.insert(0, InstallationKey())
    signed = sign_session(store, find_session(store, args.id), signers)
    by = ", ".join(str(each["by"]) for each in signed.signatures)
    message = f"event {signed.seq} signs events 1 to {signed.to_seq} by {by}: head {signed.head}"
    Screen(sys.stdout).tell(args.json, receipt_of(signed), [message])
    return OK


def verify_signed(store: SessionStore, args: argparse.Namespace) -> int:
    """Print what the record of a stored session, or of an exported file, proves.

    The exit code is 1 if it has a problem or no valid signature.
    """
    trust = Trust(Seal(), args.allowed_signers, args.timestamp_ca, shlex.split(args.witness or ""))
    for path in (args.allowed_signers, args.timestamp_ca):
        if path and not Path(path).is_file():
            raise OptionsError(f"{path} is not a file: name one that exists")
    receipts = [_receipt(path) for path in args.receipt]
    from_file: Mapping[str, Sequence[Event]] = {}
    if not args.all and Path(args.id).is_file():
        from_file = read_bundle(Path(args.id))
    names = list(from_file) or (store.list_sessions() if args.all else [find_session(store, args.id)])
    screen, all_ok = Screen(sys.stdout), True
    for name in names:
        try:
            events = from_file[name] if from_file else store.read_events(name)
        except SessionError as error:
            all_ok = False
            data = {"session_id": name, "ok": False, "error": str(error)}
            screen.tell(args.json, data, [f"{on_one_line(name)}: {on_one_line(str(error), 300)}"])
            continue
        # With one session, every receipt is meant for it: a receipt of another session must be reported, not ignored.
        mine = [receipt for receipt in receipts if receipt.get("session_id") == name or len(names) == 1]
        report = verify_record(name, events, trust, receipts=mine)
        all_ok = all_ok and report.ok
        problems = [{"kind": one.kind, "seq": one.seq, "text": one.text} for one in report.problems]
        screen.tell(args.json, {**asdict(report), "problems": problems, "ok": report.ok}, report_lines(report))
    return OK if all_ok else FAILED


def _receipt(path: str) -> Mapping[str, Any]:
    try:
        receipt = loads_json(read_named(path, _MAX_RECEIPT_BYTES))
    except (OSError, ValueError) as error:
        raise OptionsError(f"the receipt {path} cannot be read: {reason_of(error)}") from None
    if not isinstance(receipt, dict):
        raise OptionsError(f"{path} is not a receipt: `sessions sign --json` prints one")
    return receipt


def _signer(voucher: Voucher) -> str:
    """The kind and the name of a signer; the name of an installation contains its kind (`this installation`)."""
    if voucher.by == "installation" and voucher.name:
        return voucher.name
    return f"{voucher.by} {voucher.name}".rstrip()


def report_lines(report: RecordReport) -> list[str]:
    """Who signed which events of a record, and its problems, in sentences."""
    verdict = "holds" if report.ok else "does not hold" if report.problems else "is not signed"
    lines = [f"{on_one_line(report.session_id)}: the record of {plural(report.events, 'event')} {verdict}"]
    for each in report.ranges:
        but = f" but {', '.join(map(str, each.except_seqs[:20]))}" if each.except_seqs else ""
        where = "" if each.session_id == report.session_id else f", as session {on_one_line(each.session_id)}"
        head = f"  events {each.from_seq} to {each.to_seq}{but}{where}:"
        lines += [f"{head} {_signer(voucher)} ({voucher.proof}: {voucher.how})" for voucher in each.vouchers]
    if report.unsigned:
        lines.append(f"  not yet signed: the last {plural(report.unsigned, 'event')}")
    lines += [f"  event {problem.seq or '-'}: {problem.text} ({problem.kind})" for problem in report.problems]
    lines += [f"  event {seq}: {path} was erased" for seq, path in report.erased]
    recorded = {True: "recorded here", False: "NOT recorded here", None: "only the installation can check this"}
    for approval in report.approvals:
        origin = recorded[approval.is_recorded]
        lines.append(
            f"  event {approval.seq}: {approval.name} answered {approval.answer!r} for {approval.tool} "
            f"({approval.how}; {origin})"
        )
    return lines
