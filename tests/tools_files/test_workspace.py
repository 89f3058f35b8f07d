from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from openagentic_sdk.errors import ToolError
from openagentic_sdk.ground.files import open_file, replace_file
from openagentic_sdk.tools.base import Tool
from openagentic_sdk.tools.edit import EditTool
from openagentic_sdk.tools.files import workspace
from openagentic_sdk.tools.files.workspace import plain_path_errors, resolve_path, shown_path
from openagentic_sdk.tools.glob import GlobTool
from openagentic_sdk.tools.grep import GrepTool
from openagentic_sdk.tools.read import ReadTool
from openagentic_sdk.tools.write import WriteTool
from tests.size import sized

from .support import Rules, ScratchCase


class ResolvePath(ScratchCase):
    def test_a_path_means_one_absolute_file(self) -> None:
        (self.root / "real").mkdir()
        self.write("real/f")
        (self.root / "link").symlink_to("real")
        (self.root / "file_link").symlink_to("real/f")
        (self.root / "broken").symlink_to("nowhere/x")
        home = os.path.expanduser("~")
        root = str(self.root)
        for path, lexical, real in (
            ("a", f"{root}/a", f"{root}/a"),
            ("./a/./b", f"{root}/a/b", f"{root}/a/b"),
            ("a/../b", f"{root}/b", f"{root}/b"),
            ("a//b/", f"{root}/a/b", f"{root}/a/b"),
            (f"{root}/a", f"{root}/a", f"{root}/a"),
            (f"/{root}/a", f"{root}/a", f"{root}/a"),
            ("link/f", f"{root}/link/f", f"{root}/real/f"),
            ("link/new", f"{root}/link/new", f"{root}/real/new"),
            ("file_link", f"{root}/file_link", f"{root}/real/f"),
            ("broken", f"{root}/broken", f"{root}/nowhere/x"),
            ("~", home, os.path.realpath(home)),
            ("~/x", f"{home}/x", os.path.realpath(f"{home}/x")),
            ("~user/x", f"{root}/~user/x", f"{root}/~user/x"),
            ("$HOME/x", f"{root}/$HOME/x", f"{root}/$HOME/x"),
            ("/../etc", "/etc", os.path.realpath("/etc")),
        ):
            with self.subTest(path=path):
                self.assertEqual(resolve_path(path, root), workspace.ResolvedPath(lexical, real))

    def test_a_path_that_means_two_things_is_refused(self) -> None:
        outside = self.root / "outside" / "deep"
        outside.mkdir(parents=True)
        (self.root / "link").symlink_to(outside)
        for path in ("link/../x", "link/../../x", "", "a\0b"):
            with self.subTest(path=path), self.assertRaises(ToolError):
                resolve_path(path, str(self.root))

    def test_results_show_paths_relative_to_the_working_directory(self) -> None:
        for path, cwd, shown in (
            ("/a/b/c", "/a/b", "c"),
            ("/a/b", "/a/b", "."),
            ("/a/bc", "/a/b", "/a/bc"),
            ("/x", "/", "x"),
        ):
            with self.subTest(path=path):
                self.assertEqual(shown_path(path, cwd), shown)


class Opening(ScratchCase):
    def test_a_link_swapped_in_after_resolving_is_not_followed(self) -> None:
        self.write("secret/f", "secret")
        self.write("open/f", "open")
        path = resolve_path("open/f", str(self.root))
        (self.root / "open").rename(self.root / "moved")
        (self.root / "open").symlink_to("secret")
        with self.assertRaisesRegex(ToolError, "became a link"), open_file(path.real):
            pass
        with self.assertRaisesRegex(ToolError, "became a link"):
            replace_file(path.real, b"x", None)
        self.assertEqual((self.root / "secret/f").read_text(), "secret")

    def test_a_file_swapped_for_a_link_is_not_followed(self) -> None:
        self.write("secret", "secret")
        path = resolve_path(str(self.write("f", "open")), "/")
        (self.root / "f").unlink()
        (self.root / "f").symlink_to("secret")
        with self.assertRaisesRegex(ToolError, "a link"), open_file(path.real):
            pass

    def test_special_files_are_refused_at_once(self) -> None:
        os.mkfifo(self.root / "pipe")
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.getcwd()
            os.chdir(self.root)  # the address of a socket is short
            self.addCleanup(os.chdir, here)
            listener.bind("socket")
            (self.root / "folder").mkdir()
            (self.root / "to_device").symlink_to("/dev/zero")
            for path, words in (
                ("pipe", "a pipe"),
                ("socket", "a socket"),
                ("folder", "a folder: use Glob"),
                ("to_device", "a device"),
                ("/dev/null", "a device"),
                ("/", "a folder"),
            ):
                for tool, input in (
                    (ReadTool(), {}),
                    (WriteTool(), {"content": "x", "overwrite": True}),
                    (EditTool(), {"old": "a", "new": "b"}),
                ):
                    with self.subTest(path=path, tool=tool.name), self.assertRaisesRegex(ToolError, words):
                        self.call(tool, file_path=path, **input)

    def test_a_path_that_leads_elsewhere_than_permitted_is_not_touched(self) -> None:
        self.write("secret/f", "SECRET")
        self.write("work/f", "public")
        permitted = {str(self.root / "work/f"), str(self.root / "work")}

        ctx = self.context(rules=Rules(permitted.__contains__))
        self.assertIn("public", self.call(ReadTool(), ctx, file_path="work/f")["content"])
        (self.root / "work").rename(self.root / "aside")
        (self.root / "work").symlink_to("secret")
        for tool, input in (
            (ReadTool(), {"file_path": "work/f"}),
            (WriteTool(), {"file_path": "work/f", "content": "x", "overwrite": True}),
            (EditTool(), {"file_path": "work/f", "old": "SECRET", "new": "x"}),
            (GrepTool(), {"root": "work", "query": "SECRET"}),
            (GlobTool(), {"root": "work", "pattern": "*"}),
        ):
            with self.subTest(tool=tool.name), self.assertRaisesRegex(ToolError, "may not"):
                self.call(tool, ctx, **input)
        self.assertEqual((self.root / "secret/f").read_text(), "SECRET")

    def test_a_folder_swapped_for_a_link_while_files_are_opened_never_shows_another_file(self) -> None:
        self.write("secret/f", "SECRET")
        self.write("work/f", "public")
        stop = threading.Event()
        swapper = threading.Thread(target=_swap, args=(self.root, stop))
        swapper.start()
        seen = set()
        try:
            for _ in range(sized(300, 1_000, 3_000)):
                with contextlib.suppress(ToolError, OSError), open_file(str(self.root / "work/f")) as fd:
                    seen.add(os.read(fd, 100))
        finally:
            stop.set()
            swapper.join()
        self.assertNotIn(b"SECRET", seen)
        with open_file(str(self.root / "work/f")) as fd:
            self.assertEqual(os.read(fd, 100), b"public")


def _swap(root: Path, stop: threading.Event) -> None:
    work, aside = root / "work", root / "aside"
    while not stop.is_set():
        work.rename(aside)
        work.symlink_to("secret")
        work.unlink()
        aside.rename(work)


class PathErrors(ScratchCase):
    def calls(self, path: str) -> Iterator[tuple[Tool, dict[str, str]]]:
        yield ReadTool(), {"file_path": path}
        yield WriteTool(), {"file_path": path, "content": "x"}
        yield EditTool(), {"file_path": path, "old": "x", "new": "y"}
        yield GlobTool(), {"pattern": "*", "root": path}
        yield GrepTool(), {"query": "x", "root": path}

    def test_a_path_that_the_system_refuses_is_explained_without_an_errno(self) -> None:
        self.write("file")
        (self.root / "circle").symlink_to("circle")
        long = "n" * 300
        for path, words in (
            (long, "too long; use shorter names|does not exist"),
            (f"{long}/f", "too long; use shorter names|does not exist"),
            ("circle", "is part of a symbolic link loop: name a file"),
            ("circle/f", "is part of a symbolic link loop: name a file"),
            ("file/f", "is a file, not a folder|does not exist"),
            ("/proc/none/f", "does not exist|cannot be used: No such file or directory; choose a folder"),
        ):
            for tool, input in self.calls(path):
                with self.subTest(path=path[:20], tool=tool.name):
                    with self.assertRaisesRegex((OSError, ToolError), words) as caught:
                        self.call(tool, **input)
                    self.assertNotIn("[Errno", str(caught.exception))

    def test_errors_of_the_system_keep_their_type_and_number_and_gain_the_path_and_advice(self) -> None:
        path = resolve_path("a/f", str(self.root))
        for number, advice in (
            (errno.EACCES, "choose a path that this user may access"),
            (errno.EROFS, "on a file system that can be written"),
            (errno.ENOSPC, "free some space"),
            (errno.EDQUOT, "free some space"),
            (errno.EMFILE, "try again later"),
            (errno.EIO, "choose another path"),
        ):
            raised = OSError(number, os.strerror(number), ".f.0123.tmp")
            with (
                self.subTest(number),
                self.assertRaises(type(raised)) as caught,
                plain_path_errors(path, str(self.root)),
            ):
                raise raised
            self.assertEqual(caught.exception.errno, number)
            self.assertRegex(str(caught.exception), f"^'a/f' cannot be used: {os.strerror(number)}; .*{advice}")


class Replacing(ScratchCase):
    def test_a_file_that_changes_between_check_and_replacement_is_left_alone(self) -> None:
        file = self.write("f", "one")
        before = os.stat(file)
        file.write_text("somebody else")
        with self.assertRaisesRegex(ToolError, "changed while"):
            replace_file(str(file), b"mine", before)
        self.assertEqual(file.read_text(), "somebody else")
        self.assertEqual(os.listdir(self.root), ["f"])

    def test_a_file_that_appears_before_creation_is_left_alone(self) -> None:
        file = self.write("f", "somebody else")
        with self.assertRaises(FileExistsError):
            replace_file(str(file), b"mine", None)
        self.assertEqual(file.read_text(), "somebody else")
        self.assertEqual(os.listdir(self.root), ["f"])

    def test_a_failed_write_leaves_nothing_behind(self) -> None:
        with self.assertRaises(TypeError):
            replace_file(str(self.root / "f"), "no bytes", None)  # type: ignore[arg-type]
        self.assertEqual(os.listdir(self.root), [])

    def test_new_files_obey_the_umask(self) -> None:
        old = os.umask(0o027)
        self.addCleanup(os.umask, old)
        replace_file(str(self.root / "f"), b"x", None)
        self.assertEqual(stat.S_IMODE(os.stat(self.root / "f").st_mode), 0o640)
