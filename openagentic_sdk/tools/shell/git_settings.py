"""The settings of a repository that run nothing, whatever their values; in an untrusted project, git follows no others.

This is not a list of the settings that run programs, which grows with every release of git, but of those that do not.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ground.disk import read_regular
from ...ground.frozen import frozen
from ...ground.patterns import regex

MAX_GIT_FILE_BYTES = 1_000_000
_SECTION = regex(r'\[([A-Za-z]+)(?:[ \t]+"[^"\\\n]*")?\]')
_KEY = regex(r"([A-Za-z][A-Za-z0-9-]*)(?:[ \t]*=.*[^\\]|[ \t]*=)?")
# git-config(1); their values are numbers, switches, names and addresses.
HARMLESS: Mapping[str, frozenset[str]] = {
    section: frozenset(keys.split())
    for section, keys in {
        "core": """repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks autocrlf eol
            safecrlf quotepath abbrev compression longpaths sharedrepository trustctime checkstat sparsecheckout
            sparsecheckoutcone untrackedcache preloadindex""",
        "index": "sparse version threads",
        "remote": "url fetch pushurl tagopt prune gh-resolved promisor partialclonefilter",
        "branch": "remote merge rebase description vscode-merge-base github-pr-owner-number gh-merge-base autosetuprebase",
        "submodule": "url active",
        "user": "name email useconfigonly",
        "extensions": "objectformat refstorage worktreeconfig partialclone preciousobjects noop relativeworktrees",
        "pull": "rebase ff",
        "push": "default autosetupremote followtags",
        "fetch": "prune prunetags",
        "rerere": "enabled",
        "init": "defaultbranch",
        "color": "ui",
        "gc": "auto",
        "lfs": "repositoryformatversion",
    }.items()
}


@frozen
class GitSettings:
    """A git configuration file reduced to settings that run nothing, and the names of the omitted ones (`dropped`)."""

    harmless_text: str
    dropped: tuple[str, ...]


def config_lines(path: str) -> list[str]:
    """The lines of a configuration file, separated by line feeds only, as in git.

    Raises OSError if the file cannot be read, and ValueError if its name is impossible, if it is not a regular file, or if
    it is larger than 1 MB.
    """
    return read_regular(path, MAX_GIT_FILE_BYTES).decode("utf-8", "surrogateescape").split("\n")


def read_config(path: str) -> GitSettings | None:
    """The part of a configuration file that git may follow; None if the file cannot be opened.

    Lines that are not in the form in which git writes them are omitted, and so is all of a special file or of one larger
    than 1 MB.
    """
    try:
        lines = config_lines(path)
    except OSError:
        return None
    except ValueError as error:
        return GitSettings("", (f"{path}: {error}",))
    section, safe_lines, dropped = "", [], []
    for line in lines:
        # Not `strip()`, which would remove characters that git keeps as part of a value.
        line = line.strip(" \t\r")
        header, key = _SECTION.fullmatch(line), _KEY.fullmatch(line)
        if line.startswith("["):
            # A header in another form hides which section follows, so nothing below it is kept until the next one.
            section = "" if header is None else header[1].lower()
            if section in HARMLESS:
                safe_lines.append(line)
            elif header is None:
                dropped.append(line)
        elif key is not None and key[1].lower() in HARMLESS.get(section, ()):
            safe_lines.append(line)
        elif line and line[0] not in "#;":
            dropped.append(f"{section}.{key[1].lower()}" if key is not None and section else line)
    return GitSettings("".join(f"{line}\n" for line in safe_lines), tuple(dict.fromkeys(dropped)))
