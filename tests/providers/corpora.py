"""Check the recorded answers in whole repositories that are already on this machine: nothing is fetched.

    python3 -m tests.providers.corpora REPOSITORY...

A repository is a folder with a work tree, or a git directory without one, whose newest commit is read. Each recording in it
passes through the checks of `openagentic-sdk wire check`; differences are printed, and one line for each repository and for
all of them. The exit code is 1 if a truncated stream would run a call, or produce text, that the whole stream does not, or
if bytes that arrive one by one are read differently.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from openagentic_sdk.errors import OptionsError
from openagentic_sdk.testing.wire_check.check import check_exchange
from openagentic_sdk.testing.wire_check.recordings import read_recording

RECORDINGS = re.compile(r".*\.(?:ya?ml|json|jsonl|har|httprr|sse|chunks\.txt)(?:\.gz)?")
# Words in an answer of each protocol, in an AWS frame in base64, and in a packed or encoded body of a cassette.
_ANSWER = re.compile(
    rb'choices|candidates|message_start|messageStart|output_text|response\.created|"output"|!!binary|base64|\x1f\x8b|httprr'
)
_CASSETTE = re.compile(rb"^(?:http_)?interactions:", re.M)
_SHOWN_PER_KIND = 40
# Faults that no endpoint may cause; the other two kinds concern differences of taste.
_BARRED = ("cut", "bytes")

Checked = tuple[Counter[str], list[str]]


def main(named: Sequence[str]) -> int:
    totals, shown = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as work, ProcessPoolExecutor(2) as pool:
        for number, name in enumerate(named):
            paths = list(_recordings(Path(name), Path(work, str(number))))
            found = pool.map(check_file, map(str, paths), chunksize=4)
            counted = Counter[str]()
            for counts, lines in found:
                counted += counts
                for line in lines:
                    kind = line.split(": ", 2)[1]
                    shown[kind] += 1
                    if shown[kind] <= _SHOWN_PER_KIND:
                        print(line.replace(f"{work}/{number}/", ""), flush=True)
            print(_summary(_title(Path(name)), counted), flush=True)
            totals += counted
    print(_summary("all", totals))
    return 1 if any(totals[f"different: {kind}"] for kind in _BARRED) else 0


def check_file(path: str) -> Checked:
    """The counts and the differences of one recording; nothing for a file that is not a recording."""
    counts, lines = Counter[str](), list[str]()
    data = Path(path).read_bytes()
    if not _ANSWER.search(data):
        return counts, lines
    try:
        for exchange in read_recording(Path(path)):
            checked = check_exchange(exchange)
            if checked is None:
                continue
            counts["answers"] += 1
            counts[f"answers: {checked.protocol}"] += 1
            counts["cuts"] += checked.cuts
            counts["refused"] += checked.refusal is not None
            for one in checked.differences:
                counts[f"different: {one.kind}"] += 1
                lines.append(f"{checked.name}: {one.kind}: {one.detail[:600]}")
            if checked.refusal is not None:
                lines.append(f"{checked.name}: refused: {checked.refusal[:300]}")
    except OptionsError as error:
        if _CASSETTE.search(data):
            counts["unreadable"] += 1
            lines.append(f"{path}: unreadable: {error}")
    counts["files"] += bool(counts["answers"])
    return counts, lines


def _recordings(repository: Path, work: Path) -> Iterator[Path]:
    """The files of a repository that may be recordings; those of a git directory are first written into `work`."""
    if not Path(repository, "HEAD").exists():
        yield from (
            path for path in sorted(repository.rglob("*")) if RECORDINGS.fullmatch(path.name) and path.is_file()
        )
        return
    git = ["git", f"--git-dir={repository}"]
    listed = subprocess.run([*git, "ls-tree", "-r", "-z", "HEAD"], capture_output=True, check=True).stdout
    entries = [line.split(b"\t", 1) for line in listed.split(b"\0") if line]
    wanted = [(kind.split(b" ")[2], name.decode("utf-8", "replace")) for kind, name in entries]
    wanted = [(blob, name) for blob, name in wanted if RECORDINGS.fullmatch(name.rpartition("/")[2])]
    for (_, name), data in zip(wanted, _blobs(git, (blob for blob, _ in wanted)), strict=True):
        if data is not None and _ANSWER.search(data):
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            yield path


def _blobs(git: Sequence[str], names: Iterable[bytes]) -> Iterator[bytes | None]:
    """The contents of git objects, in order; None for those that the directory lacks."""
    asked = b"".join(name + b"\n" for name in names)
    out = subprocess.run([*git, "cat-file", "--batch"], input=asked, capture_output=True, check=False).stdout
    at = 0
    while at < len(out):
        head, at = out[at : out.index(b"\n", at)], out.index(b"\n", at) + 1
        if head.endswith(b" missing"):
            yield None
            continue
        size = int(head.rpartition(b" ")[2])
        yield out[at : at + size]
        at += size + 1


def _title(repository: Path) -> str:
    return repository.parent.name if repository.name in ("repo", ".git") else repository.name


def _summary(title: str, counted: Counter[str]) -> str:
    protocols = ", ".join(
        f"{count} {key.partition(': ')[2]}" for key, count in sorted(counted.items()) if key.startswith("answers: ")
    )
    kinds = {key: count for key, count in counted.items() if key.startswith("different: ")}
    told = ", ".join(f"{count} {key.partition(': ')[2]}" for key, count in sorted(kinds.items())) or "none"
    return (
        f"{title}: {counted['answers']} answers ({protocols or 'none'}) in {counted['files']} files, "
        f"{counted['cuts']} cuts, {counted['refused']} refused, {counted['unreadable']} unreadable; different: {told}"
    )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
