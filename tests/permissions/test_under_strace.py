"""Lines that default mode allows without a rule, under strace: they read nothing outside the workspace except libraries,
locale files and data about the machine, and write nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shlex
import shutil
import subprocess
import unittest

from openagentic_sdk.permissions.gate import PermissionGate
from tests.size import LARGE, full_size

from .test_reading_programs import random_call
from .workspace import WorkspaceTestCase, fixture

CALLS = 5_000 if LARGE else 10
# Paths that programs, the linker and the C library open on their own: libraries, locales and data about the machine.
_SYSTEM = re.compile(
    r"/(?:$|usr/|lib|bin/|etc/(?:ld\.so|locale|localtime|nsswitch|passwd$|group$|mime|magic|mtab|inputrc|terminfo|host\.conf"
    r"|resolv\.conf$|hosts$|services$|protocols$|dpkg/)"  # netstat; dpkg
    r"|proc/(?:self|meminfo|cpuinfo|uptime|loadavg|filesystems|mounts|swaps|locks|sys|stat|\d+(?!/environ))"
    r"|proc$|proc/tty/|sys/|dev/(?:null|tty|urandom)|run/utmp|var/run/utmp|var/log/wtmp|var/lib/dpkg/)"
)
# whereis lists these folders to find programs; it reads no file in them.
_PROGRAM_FOLDERS = frozenset(map(os.path.realpath, ("/etc", "/opt", *os.environ["PATH"].split(os.pathsep))))
_OPEN = re.compile(
    r'open(?:at2?)?\((?:(?:AT_FDCWD|\d+)(?:<([^>]*)>)?, )?"([^"]*)", (?:\{flags=)?([A-Z_|0-9]+)[^=]*\)\s+= \d+(?:<([^>]*)>)?'
)
_CHANGES = re.compile(
    r"\b(?:unlink|unlinkat|rename|renameat2?|mkdir|mkdirat|rmdir|link|linkat|symlink|symlinkat|chmod|fchmodat|chown|fchownat"
    r"|truncate|mknodat|(?:connect|bind)(?!.*AF_NETLINK))\(.*= 0$",  # netlink: ip asks the kernel for its addresses
    re.MULTILINE,
)
# rg reads the user's git settings for the ignored files, and prints nothing of them.
_IGNORED_BY_GIT = re.compile(re.escape(os.path.expanduser("~")) + r"/\.(?:gitconfig|gitignore|config/git/.*)")
CALLS_TRACED = (
    "open,openat,openat2,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,"
    "chmod,fchmodat,chown,fchownat,truncate,mknodat,connect,bind"
)


@unittest.skipIf(shutil.which("strace") is None, "strace is not installed")
class UnderStrace(WorkspaceTestCase):
    @full_size
    def test_commands_allowed_without_a_rule_open_nothing_outside_and_write_nothing(self) -> None:
        rng = random.Random(29)
        lines = [case[1] for group in fixture("commands.json") if not group["policy"] for case in group["cases"]]
        lines += [random_call(rng) for _ in range(CALLS)]
        gate = PermissionGate(cwd=str(self.root))
        allowed = asyncio.run(self.allowed_lines(gate, list(dict.fromkeys(lines))))
        self.assertGreater(len(allowed), 60)
        log = self.outside / "trace"
        script = self.outside / "script.sh"
        # Each line runs in its own shell, as in Bash; the markers assign system calls to lines.
        runs = [
            f"true 'line {number}'\ntimeout 5 bash --noprofile --norc -c {shlex.quote(line)}"
            for number, line in allowed
        ]
        script.write_text("\n".join(runs), encoding="utf-8")
        # --seccomp-bpf: only the traced calls stop the process.
        # Drop root's capabilities: a line that passes by mistake must not set the clock.
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
        command += ["strace", "-f", "--seccomp-bpf", "-y", "-s", "4096", "-qq", "-e", f"trace={CALLS_TRACED},execve"]
        command += ["-o", str(log), "bash"]
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        null = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        done = subprocess.run(  # type: ignore[call-overload]
            [*command, str(script)], cwd=self.root, env=environment, timeout=600, check=False, **null
        )
        seen = set()
        text = log.read_text(encoding="utf-8", errors="replace")
        self.assertIn("execve", text, f"strace exited with {done.returncode}")
        for traced in text.splitlines():
            change = _CHANGES.search(traced)
            self.assertIsNone(change, traced)
            opened = _OPEN.search(traced)
            if opened is None:
                continue
            folder, name, flags, real = opened.groups()
            if "O_PATH" in flags.split("|"):
                continue  # O_PATH cannot read: nss-systemd opens /run/userdb so for each name lookup
            path = real or os.path.normpath(os.path.join(folder or str(self.root), name))
            seen.add(path)
            with self.subTest(opened=traced[:300]):
                is_write = not {"O_WRONLY", "O_RDWR", "O_CREAT"}.isdisjoint(flags.split("|"))
                self.assertFalse(is_write and not path.startswith("/dev/"), "the line writes a file")
                inside = path == str(self.root) or path.startswith(f"{self.root}/") or path == str(script)
                is_list = "O_DIRECTORY" in flags.split("|") and path in _PROGRAM_FOLDERS
                self.assertTrue(
                    inside
                    or is_list
                    or _SYSTEM.match(path)
                    or _IGNORED_BY_GIT.match(path)
                    or path.startswith(("pipe:", "/dev/")),
                    "the line reads outside the workspace",
                )
        self.assertLessEqual({f"{self.root}/README.md", f"{self.root}/src/a.py"}, seen)

    async def allowed_lines(self, gate: PermissionGate, lines: list[str]) -> list[tuple[int, str]]:
        """The allowed lines with their numbers, except those that only wait."""
        found = []
        for number, line in enumerate(lines):
            result = await gate.approve("Bash", {"command": line}, {"cwd": str(self.root)})
            if result and not line.lstrip("'").startswith("sleep"):
                found.append((number, line))
        return found


if __name__ == "__main__":
    unittest.main()
