"""Count the questions asked about a public corpus of command lines, and check that each line changes only its copy.

    python3 -m benchmarks._questions tests/cli [--no-sandbox] [--shard 0/2] [--out FILE]

`tests/cli` is the folder of that name in github.com/ldayton/Dippy, whose tests classify 7,340 lines as harmless or not. It
is not part of this repository. Each line that the rules do not settle runs for real, on a copy; a dangerous one only if a
program that it names is not installed. All of this therefore runs inside bubblewrap: everything read-only except a
throwaway home and temporary folder, no network, no other processes, limits on memory and files. After each line the
throwaway folders are compared with their previous state.
"""

from __future__ import annotations

import argparse
import ast
import collections
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, PermissionGate, run_sync
from openagentic_sdk.events import PermissionDecision, ToolResult, UserQuestion
from openagentic_sdk.permissions.shell import CommandLine, parse_command
from openagentic_sdk.testing import ScriptedProvider

_INSIDE = "OPENAGENTIC_QUESTIONS_INSIDE"
# These act through a remote service, with an account, or on the network.
CLIENTS = frozenset(
    """aws az gcloud gh auth0 kubectl helm docker docker-compose podman podman-compose curl wget psql mysql sqlcmd cdk packer
    prometheus journalctl systemctl ansible""".split()  # noqa: SIM905
)


def read_lines(folder: Path) -> list[tuple[str, str, bool]]:
    """For each row of the corpus: the file, the line, and whether it is classified as harmless."""
    rows = []
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            for item in value.elts if isinstance(value, ast.List | ast.Tuple) else ():
                row = ast.literal_eval(item)
                if isinstance(row, tuple) and len(row) >= 2 and isinstance(row[0], str) and isinstance(row[1], bool):
                    rows.append((path.stem.removeprefix("test_"), row[0], row[1]))
    return rows


def programs_of(line: str) -> list[str]:
    """The programs that the commands of a line run; for a line that is not understood, its first word."""
    parsed = parse_command(line)
    if isinstance(parsed, CommandLine):
        return [command.argv[0] for command in parsed.commands]
    return line.split()[:1]


def digest_of(folders: list[str]) -> str:
    """A digest of the contents of the folders."""
    total = hashlib.sha256()
    for folder in folders:
        for top, names, files in os.walk(folder):
            names[:] = sorted(set(names) - {".cargo", ".rustup"})  # mounted read-only
            for name in sorted((*names, *files)):
                path = os.path.join(top, name)
                status = os.lstat(path)
                total.update(f"{path}\0{status.st_mode}\0".encode())
                if os.path.isfile(path) and not os.path.islink(path):
                    total.update(Path(path).read_bytes())
    return total.hexdigest()


def make_project(root: Path) -> None:
    """Create a small repository with the files that lines of the corpus name."""
    (root / "src").mkdir(parents=True)
    for name in (
        "file.txt",
        "files.txt",
        "list.txt",
        "a.txt",
        "b.txt",
        "data.csv",
        "README.md",
        "src/main.py",
        "script.sh",
    ):
        (root / name).write_text("one\ntwo\nthree\n", "utf-8")
    (root / "package.json").write_text('{"name": "x", "version": "1.0.0"}\n', "utf-8")
    subprocess.run(["sqlite3", str(root / "mydb.db"), "create table users (name)"], check=False)
    (root / "data.json").write_text('{"key": [1, 2]}\n', "utf-8")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "first"], ["tag", "v1.0"]):
        subprocess.run([*git, *words], cwd=root, check=True, capture_output=True)


def outcome_of(line: str, root: Path, sandbox: str) -> dict[str, object]:
    """Run a line as a model's call in mode `default`, with a person who always refuses."""
    questions: list[UserQuestion] = []

    async def refuse(question: UserQuestion) -> str:
        questions.append(question)
        return "no"

    store = MemorySessionStore()
    options = OpenAgenticOptions(
        provider=ScriptedProvider([{"tool_calls": [{"name": "Bash", "arguments": {"command": line}}]}, "Done."]),
        model="m",
        permission_gate=PermissionGate(user_answerer=refuse),
        session_store=store,
        cwd=str(root),
        sandbox=sandbox,  # type: ignore[arg-type]
    )
    events = list(store.iter_events(run_sync(prompt="Run it.", options=options).session_id))
    result = next((event for event in events if isinstance(event, ToolResult)), None)
    output = result.output if result is not None and isinstance(result.output, dict) else {}
    return {
        "asked": [[question.prompt, str(question.details.get("reason"))] for question in questions],
        "decided": [
            event.details.get("category") for event in events if isinstance(event, PermissionDecision) and event.allowed
        ],
        "exit_code": output.get("exit_code"),
        "stderr": str(output.get("stderr"))[-200:],
    }


def measure(rows: list[tuple[str, str, bool]], sandbox: str, out: Path) -> None:
    root = Path(os.environ["HOME"]).parent / "project"
    make_project(root)
    watched = [str(root), os.environ["HOME"]]
    outcome_of("true && awk 1 /dev/null", root, sandbox)  # the first run creates the installation's key
    before = digest_of(watched)
    gate = PermissionGate(cwd=str(root))
    with out.open("w", encoding="utf-8") as file:
        for name, line, harmless in rows:
            found: dict[str, object] = {"file": name, "line": line, "harmless": harmless}
            missing = [word for word in programs_of(line) if "/" not in word and _is_missing(word)]
            if gate.verdict("Bash", {"command": line}, {"cwd": str(root)}).outcome == "allow":
                found["by_rule"] = True
            elif missing and harmless:
                found["missing"] = missing[0]
            elif sandbox != "off":
                found |= outcome_of(line, root, sandbox)
            after = digest_of(watched)
            if after != before:
                found["changed"] = True
                before = after
            file.write(json.dumps(found) + "\n")
            file.flush()


def _is_missing(word: str) -> bool:
    return word not in _BUILTINS and shutil.which(word) is None


_BUILTINS = frozenset(subprocess.run(["bash", "-c", "compgen -b -k"], capture_output=True, text=True).stdout.split())


def report(found: list[dict[str, object]]) -> None:
    for harmless in (True, False):
        rows = [row for row in found if row["harmless"] is harmless]
        by_rule = [row for row in rows if row.get("by_rule")]
        print(
            f"{'harmless' if harmless else 'dangerous'}: {len(rows)} lines, {len(by_rule)} run by rules and tables alone"
        )
        missing = collections.Counter(str(row["missing"]) for row in rows if "missing" in row)
        print(f"  counted out, not installed: {sum(missing.values())}: {dict(missing.most_common())}")
        here = [row for row in rows if "missing" not in row]
        clients = [row for row in here if not CLIENTS.isdisjoint(programs_of(str(row["line"])))]
        print(f"  counted out, clients of services and accounts: {len(clients)}")
        rest = [row for row in here if row not in clients]
        network = [row for row in rest if "it needs the network" in str(row.get("asked"))]
        print(f"  counted out, needed the network when it was tried: {len(network)}")
        rest = [row for row in rest if row not in network]
        free = [row for row in rest if not row.get("asked")]
        print(f"  left {len(rest)}, without a question {len(free)} ({100 * len(free) / max(len(rest), 1):.1f} %)")
        reasons = collections.Counter(str(row["asked"][0])[:90] for row in rest if row.get("asked"))  # type: ignore[index]
        for reason, count in reasons.most_common(12):
            print(f"    {count:5} {reason}")
        print(f"  changed something outside the copy: {[row['line'] for row in rows if row.get('changed')]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--no-sandbox", action="store_true", help="try no line on a copy: count what the tables alone let run"
    )
    parser.add_argument("--shard", default="0/1", help="which part of the lines, as 0/2")
    parser.add_argument("--out", type=Path, default=Path("questions.jsonl"))
    given = parser.parse_args()
    if os.environ.get(_INSIDE) is None:
        given.out.touch()
        return subprocess.run(
            _inside(given.folder.resolve(), given.out.resolve(), sys.argv[1:]), check=False
        ).returncode
    part, parts = map(int, given.shard.split("/"))
    rows = sorted(read_lines(given.folder), key=lambda row: not row[2])
    measure(rows[part::parts], "off" if given.no_sandbox else "auto", given.out)
    report([json.loads(line) for line in given.out.read_text("utf-8").splitlines()])
    return 0


def _inside(folder: Path, out: Path, words: list[str]) -> list[str]:
    """Run the same program in a throwaway root."""
    here = str(Path(__file__).resolve().parents[1])
    return [
        *("bwrap", "--unshare-user", "--unshare-all", "--die-with-parent", "--new-session"),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs", "/run", "--tmpfs", "/mnt"),
        *(
            "--dir",
            "/mnt/home",
            "--dir",
            "/mnt/tmp",
            "--ro-bind",
            here,
            "/mnt/sdk",
            "--ro-bind",
            str(folder),
            "/mnt/corpus",
        ),
        *(word for name in (".cargo", ".rustup") if (real := Path.home() / name).is_dir() for word in _bind(real)),
        *("--bind", str(out), "/mnt/out.jsonl", "--setenv", "HOME", "/mnt/home", "--setenv", "TMPDIR", "/mnt/tmp"),
        *("--setenv", _INSIDE, "1", "--setenv", "PYTHONPATH", "/mnt/sdk", "--chdir", "/mnt/sdk"),
        *("prlimit", "--core=0", "--nproc=4096", "--fsize=1073741824"),
        *(sys.executable, "-B", "-m", "benchmarks._questions", "/mnt/corpus", "--out", "/mnt/out.jsonl"),
        *(word for word in _kept(words)),
    ]


def _bind(toolchain: Path) -> tuple[str, ...]:
    return ("--ro-bind", str(toolchain), f"/mnt/home/{toolchain.name}")


def _kept(words: list[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if word == "--shard":
            yield from (word, next(rest))
        elif word == "--out":
            next(rest)
        elif word.startswith("--"):
            yield word


if __name__ == "__main__":
    raise SystemExit(main())
