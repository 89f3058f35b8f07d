"""Ask once whether a project's own files may grant something, and remember the answer for exactly these files."""

from __future__ import annotations

from ..assemble import sdk_home
from ..options import OpenAgenticOptions
from ..project.claude import claude_folders
from ..project.settings import read_settings
from ..project.trust import TrustStore
from .terminal import Screen, on_one_line


def ask_for_trust(options: OpenAgenticOptions, screen: Screen) -> None:
    """Put the question when settings of the project want more than they get and nobody has decided about them yet."""
    if not {"project", "local"} & set(options.setting_sources):
        return
    root = options.project_root()
    folders = claude_folders(root, cwd=options.working_dir(), setting_sources=options.setting_sources)
    withheld = read_settings(folders, trusted=False).withheld
    store = TrustStore(sdk_home() / "trust.json")
    known = store.look_up(root)
    if not withheld or known.digest is None or known.decision not in ("unknown", "changed"):
        return
    for sentence in withheld:
        screen.line(f"  {on_one_line(sentence)}")
    changed = " Its files changed since it was trusted." if known.decision == "changed" else ""
    screen.line(f"Trust the files of {on_one_line(str(root))} to grant this?{changed}")
    answer = input("[yes/no] ").strip().lower()
    store.remember(root, "trusted" if answer in ("y", "yes") else "refused", digest=known.digest)
