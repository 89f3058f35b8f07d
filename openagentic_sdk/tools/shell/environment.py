"""The environment that a command gets: the host's, without keys and without what changes how programs start.

A name is dropped when it looks like a secret, or when a shell, loader or program would run or read something because of it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping

_SECRET = re.compile(
    r"(^|_)(API_?KEYS?|ACCESS_?KEYS?|ACCESS_?KEY_?ID|PRIVATE_?KEYS?|KEY|KEYS|TOKENS?|SECRETS?|PASS|PASSWORDS?|PASSWD|PASSPHRASE"
    r"|PWD_?HASH|CREDENTIALS?|CREDS|AUTH|AUTHORIZATION|COOKIES?|DSN|CONNECTION_?STRING|WEBHOOKS?|PAT)(_|$)"
    r"|APIKEY|SECRET|PASSWORD|PASSWD|_PWD$|TOKENS?$",
    re.IGNORECASE,
)
# Each of these names makes some program load, run or read something that the command line does not show.
_STEERING = re.compile(
    r"("
    r"BASH_ENV|ENV|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|IFS|CDPATH|GLOBIGNORE|PS0|PS1|PS2|PS3|"
    r"PS4|BASH_XTRACEFD|BASH_LOADABLES_PATH|EXECIGNORE|FIGNORE|HISTFILE|INPUTRC|TMOUT|"
    r"POSIXLY_CORRECT|PYTHONSTARTUP|PYTHONHOME|PYTHONINSPECT|PYTHONEXECUTABLE|PYTHONBREAKPOINT|"
    r"PERL5OPT|PERL5LIB|PERL5DB|RUBYOPT|RUBYLIB|NODE_OPTIONS|NODE_PATH|JAVA_TOOL_OPTIONS|"
    r"_JAVA_OPTIONS|JDK_JAVA_OPTIONS|MAVEN_OPTS|LESSOPEN|LESSCLOSE|LESS|PAGER|MANPAGER|MANOPT|"
    r"EDITOR|VISUAL|BROWSER|GREP_OPTIONS|TAR_OPTIONS|RIPGREP_CONFIG_PATH|CURL_HOME|WGETRC|"
    r"SSH_ASKPASS|SUDO_ASKPASS|SSH_AUTH_SOCK|GPG_AGENT_INFO|OPENSSL_CONF"
    r")$"
)
_STEERING_PREFIXES = ("BASH_FUNC_", "LD_", "DYLD_", "GIT_", "MALLOC_", "GLIBC_TUNABLES")
_DATABASE_URL = re.compile(r"^[a-z][a-z0-9+.-]*://[^/@\s]*:[^/@\s]+@", re.IGNORECASE)


def command_environment(
    host: Mapping[str, str] | None = None, *, keep: Iterable[str] = (), extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment for a command: `host` (this process's when None) without what `is_dropped`, then `extra`.

    `keep` names variables that pass although they would be dropped. Programs that page or ask are told not to.
    """
    source = os.environ if host is None else host
    kept = frozenset(keep)
    environment = {name: value for name, value in source.items() if name in kept or not is_dropped(name, value)}
    # Without `.`, empty and relative entries: no program is found in the folder where a command happens to run.
    folders = [folder for folder in environment.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
    environment["PATH"] = os.pathsep.join(folders) or os.defpath
    environment.update(_QUIET)
    environment.update(extra or {})
    return environment


# Nobody sits at the command's terminal: a pager or an editor would wait for ever.
_QUIET: Mapping[str, str] = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "TERM": "dumb"}


def is_dropped(name: str, value: str = "") -> bool:
    """Whether a variable is kept from commands: a secret by its name, a URL with a password, or one that steers programs."""
    return _is_dropped_name(name) or _DATABASE_URL.match(value) is not None


@functools.lru_cache(maxsize=1024)
def _is_dropped_name(name: str) -> bool:
    if _STEERING.match(name) or name.startswith(_STEERING_PREFIXES):
        return True
    return _SECRET.search(name) is not None
