"""The environment of a command: the host's, without secrets and without variables that change how programs start.

A variable is dropped if its name looks like a secret's, or if a shell, loader or program would run or read something
because of it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping

from ...ground.patterns import regex

# Words in an upper-case name, between underscores, that indicate a secret; and those joined to another word.
_SECRET = regex(
    r"(^|_)(API_?KEYS?|ACCESS_?KEYS?|KEYS?|TOKENS?|SECRETS?|PASS[A-Z0-9]*|PW|PWD_?HASH|JWTS?|CREDENTIALS?|CREDS?|AUTH"
    r"|AUTHORIZATION|COOKIES?|DSN|CONNECTION_?STRING|CONN_?STR|WEBHOOKS?|PAT)(_|\d*$)"
    r"|APIKEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|SSHPASS|(^|_)[A-Z0-9]*PASS$|_PWD$|TOKENS?$"
)
_NO_SECRET = regex(r"(^|_)(COMPASS|BYPASS|PASSES|PASSIVE|PASSENGERS?|PASSTHROUGH)(_|$)|^(OLD)?PWD$")
# Each of these variables makes some program load, run or read something that the command line does not show.
_STEERING = regex(
    r"("
    r"BASH_ENV|ENV|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|IFS|CDPATH|GLOBIGNORE|PS0|PS1|PS2|PS3|"
    r"PS4|BASH_XTRACEFD|BASH_LOADABLES_PATH|EXECIGNORE|FIGNORE|HISTFILE|INPUTRC|TMOUT|"
    r"POSIXLY_CORRECT|PYTHONSTARTUP|PYTHONHOME|PYTHONINSPECT|PYTHONEXECUTABLE|PYTHONBREAKPOINT|"
    r"PERL5OPT|PERL5LIB|PERL5DB|RUBYOPT|RUBYLIB|NODE_OPTIONS|NODE_PATH|JAVA_TOOL_OPTIONS|"
    r"_JAVA_OPTIONS|JDK_JAVA_OPTIONS|MAVEN_OPTS|LESSOPEN|LESSCLOSE|LESS|PAGER|MANPAGER|MANOPT|"
    r"EDITOR|VISUAL|BROWSER|GREP_OPTIONS|TAR_OPTIONS|RIPGREP_CONFIG_PATH|CURL_HOME|WGETRC|"
    r"SSH_ASKPASS|SUDO_ASKPASS|SSH_AUTH_SOCK|GPG_AGENT_INFO|OPENSSL_CONF|LOCPATH|NLSPATH|GCONV_PATH|LC_ALL|LC_CTYPE"
    r")$"
)
# OPENAGENTIC_SDK_TRUST is a person's setting for this runtime, which a command must not set.
_STEERING_PREFIXES = ("OPENAGENTIC_SDK_TRUST", "BASH_FUNC_", "LD_", "DYLD_", "GIT_", "MALLOC_", "GLIBC_TUNABLES")
# A URL with a password, which is the group. Without the scheme, because a search for it would start again at each
# character of a long text.
PASSWORD_IN_URL = regex(r"://[^\s/:@]*:([^\s/@]+)@")


USUAL_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")


def command_environment(
    host: Mapping[str, str] | None = None,
    *,
    keep: Iterable[str] = (),
    extra: Mapping[str, str] | None = None,
    workspace: Iterable[str] = (),
) -> dict[str, str]:
    """The environment for a command: `host` (this process's if None) without the variables that `is_dropped` accepts, then
    `extra`.

    PATH loses relative folders and those in `workspace`, which a model may have written. `keep` names variables that are
    passed unchanged although they would be dropped or shortened. Pagers and interactive prompts of programs are turned off.
    """
    source = os.environ if host is None else host
    kept_names = frozenset(keep)
    environment = {
        name: value
        for name, value in source.items()
        if name in kept_names or not (_is_dropped_name(name) or ("@" in value and is_dropped(name, value)))
    }
    if "PATH" not in kept_names:
        environment["PATH"] = os.pathsep.join(search_path(environment.get("PATH", ""), workspace)[0]) or os.defpath
    environment.update(_QUIET)
    environment.update(extra or {})
    return environment


def search_path(path: str, workspace: Iterable[str]) -> tuple[list[str], list[str]]:
    """The folders of a PATH that may be searched, and those in the workspace; relative ones are in neither."""
    roots = _resolved(workspace)
    outside: list[str] = []
    inside: list[str] = []
    for folder in path.split(os.pathsep):
        if folder.startswith("/"):
            real = os.path.realpath(folder) + "/"
            (inside if real.startswith(roots) else outside).append(folder)
    return outside, inside


def find_program(name: str, workspace: Iterable[str] = ()) -> str | None:
    """Find a program for this library to start, in the usual folders, else on PATH, never in the workspace."""
    roots = _resolved(workspace)
    for folder in (*USUAL_FOLDERS, *os.environ.get("PATH", "").split(os.pathsep)):
        path = os.path.join(folder, name)
        if folder.startswith("/") and os.access(path, os.X_OK) and os.path.isfile(path):
            real_folder, real = os.path.realpath(folder) + "/", os.path.realpath(path)
            if not real.startswith(roots) and not real_folder.startswith(roots):
                return path
    return None


def _resolved(workspace: Iterable[str]) -> tuple[str, ...]:
    """The resolved folders, each with a trailing slash. The root folder is left out: it would exclude every program."""
    return tuple([real + "/" for root in workspace if (real := os.path.realpath(root).rstrip("/"))])


# A command has no terminal: a pager or an editor would wait forever.
_QUIET: Mapping[str, str] = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "TERM": "dumb"}


@functools.lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Whether a variable's name implies that its value is a secret."""
    name = name.upper()
    return _SECRET.search(name) is not None and _NO_SECRET.search(name) is None


def is_dropped(name: str, value: str = "") -> bool:
    """Whether a variable is withheld from commands: a secret by its name, a URL with a password, or one that influences
    programs.
    """
    return _is_dropped_name(name) or PASSWORD_IN_URL.search(value) is not None


@functools.lru_cache(maxsize=1024)
def _is_dropped_name(name: str) -> bool:
    return _STEERING.match(name) is not None or name.startswith(_STEERING_PREFIXES) or is_secret_name(name)
