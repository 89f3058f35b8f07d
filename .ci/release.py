"""Prepare a release: python .ci/release.py cut VERSION, or python .ci/release.py build FOLDER

`cut` turns the Unreleased section of CHANGELOG.md into the section of the version, dated today, and writes the version to
version.py.

`build` writes into FOLDER, for the version of the checkout: the source distribution and the wheel, the library as one file
(`openagentic-sdk bundle`), `sbom.json` (CycloneDX 1.6), `provenance.json` and SHA256SUMS. Everything is built twice, and a
difference of one byte is an error, as is anything that twine or check-wheel-contents reports. Times are those of the newest
commit. `provenance.json` maps each file of the wheel to its SHA-256, its path in the repository and the commit that last
changed it; a file that is not in the repository, unless the build made it, is an error. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = ROOT / "openagentic_sdk" / "version.py"
CHANGELOG = ROOT / "CHANGELOG.md"
NAME = "openagentic-sdk"
# The environment of the second build, which simulates another machine.
OTHER_MACHINE = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7"}


class ReleaseError(Exception):
    """The release cannot be prepared; the message gives the reason."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("cut", help="create the section of a version in the changelog").add_argument(
        "version", help="such as 0.2.0"
    )
    actions.add_parser("build", help="write and check all files of the release").add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        if args.action == "cut":
            cut(args.version, datetime.datetime.now(datetime.UTC).date())
        else:
            build(args.folder)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def cut(version: str, day: datetime.date) -> None:
    """Create the section of a version. Raise `ReleaseError` if it is malformed, not newer, or has no entries."""
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise ReleaseError(f"{version!r} is not a version such as 0.2.0")
    if _numbers(version) <= _numbers(current_version()):
        raise ReleaseError(f"{version} is not newer than {current_version()}")
    CHANGELOG.write_text(with_section(CHANGELOG.read_text(encoding="utf-8"), version, day), encoding="utf-8")
    source = VERSION_FILE.read_text(encoding="utf-8")
    VERSION_FILE.write_text(source.replace(f'"{current_version()}"', f'"{version}"'), encoding="utf-8")
    print(f"{CHANGELOG.name} and {VERSION_FILE.name} name {version}: review, commit and tag it as v{version}")


def with_section(changelog: str, version: str, day: datetime.date) -> str:
    """The changelog with the unreleased entries in a section of the version, and an empty section before it."""
    heading = "## [Unreleased]\n"
    before, found, rest = changelog.partition(heading)
    entries = rest.partition("\n## [")[0]
    if not found or not re.search(r"^- ", entries, re.MULTILINE):
        raise ReleaseError("the changelog has no unreleased entries")
    return f"{before}{heading}\n## [{version}] - {day.isoformat()}\n{rest}"


def current_version() -> str:
    """The version in the checkout's version.py."""
    found = re.search(r'__version__ = "(.+)"', VERSION_FILE.read_text(encoding="utf-8"))
    if found is None:
        raise ReleaseError(f"{VERSION_FILE} contains no version")
    return found[1]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def build(folder: Path) -> None:
    """Write and check the files of the release. Raise `ReleaseError` if a check fails."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        first, second = Path(name, "first"), Path(name, "second")
        for attempt, machine in ((first, {}), (second, OTHER_MACHINE)):
            attempt.mkdir()
            build_once(attempt, machine)
        refuse_difference(first, second)
        wheel, sdist = next(first.glob("*.whl")), next(first.glob("*.tar.gz"))
        run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
        run(sys.executable, "-m", "check_wheel_contents", str(wheel))
        _write_json(first / "provenance.json", provenance(wheel))
        _write_json(first / "sbom.json", sbom(wheel))
        sums = [f"{_sha256(path.read_bytes())}  {path.name}" for path in sorted(first.iterdir())]
        (first / "SHA256SUMS").write_text("\n".join(sums) + "\n")
        for path in sorted(first.iterdir()):
            shutil.copy2(path, folder)
            print(f"{path.stat().st_size:>9,}  {folder / path.name}")


def build_once(folder: Path, machine: Mapping[str, str]) -> None:
    """Build from an export of the newest commit, so that no uncommitted change can get in."""
    os.umask(0o022)  # the archives record the modes of the exported files
    with tempfile.TemporaryDirectory() as name:
        archive = Path(name, "source.tar")
        run("git", "archive", "--output", str(archive), "HEAD")
        source = Path(name, "source")
        shutil.unpack_archive(archive, source, filter="data")
        committed = run("git", "log", "-1", "--format=%ct").strip()
        times = {**os.environ, **machine, "SOURCE_DATE_EPOCH": committed}
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source), env=times)
        normalize_sdist(next(folder.glob("*.tar.gz")), int(committed))
        bundle = folder / f"{NAME}-{current_version()}.pyz"
        run(sys.executable, "-m", "openagentic_sdk", "bundle", "-o", str(bundle), cwd=source, env=times)


def normalize_sdist(path: Path, time_s: int) -> None:
    """Rewrite the archive with one time, one owner and sorted names: setuptools takes these from the machine."""
    packed = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.pax_headers = time_s, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=time_s))


def refuse_difference(first: Path, second: Path) -> None:
    """Raise `ReleaseError` unless both builds are the same, byte for byte."""
    names = [sorted(path.name for path in folder.iterdir()) for folder in (first, second)]
    if names[0] != names[1]:
        raise ReleaseError(f"two builds wrote different files: {names[0]} and {names[1]}")
    for name in names[0]:
        if (first / name).read_bytes() != (second / name).read_bytes():
            raise ReleaseError(f"two builds of {name} differ: something in it depends on time, order or place")


def provenance(wheel: Path) -> dict[str, dict[str, str]]:
    """Each file of the wheel with its origin in the repository and its digest."""
    changed: dict[str, str] = {}
    commit = ""
    for line in run("git", "log", "--format=commit %H", "--name-only", "--", "openagentic_sdk").splitlines():
        if line.startswith("commit "):
            commit = line.removeprefix("commit ")
        elif line:
            changed.setdefault(line, commit)
    files: dict[str, dict[str, str]] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            digest = _sha256(archive.read(name))
            if ".dist-info/" in name:
                files[name] = {"sha256": digest, "made_by": "setuptools"}
            elif name not in changed or _sha256((ROOT / name).read_bytes()) != digest:
                raise ReleaseError(f"{name} of the wheel is not the file of the newest commit")
            else:
                files[name] = {"sha256": digest, "path": name, "commit": changed[name]}
    return files


def sbom(wheel: Path) -> dict[str, object]:
    """The bill of materials: one component that depends only on Python."""
    version = current_version()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": NAME,
                "name": NAME,
                "version": version,
                "hashes": [{"alg": "SHA-256", "content": _sha256(wheel.read_bytes())}],
            }
        },
        "components": [],
        "dependencies": [{"ref": NAME, "dependsOn": []}],
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command and return its output. Raise `ReleaseError` with the end of its output if it fails."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(
            f"{' '.join(command[:4])} exited with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
