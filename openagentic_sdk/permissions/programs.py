"""What programs do with their arguments, as far as a permission depends on it. Tables, and three questions about them.

`hazard(argv)`: does this call run, or write, something that its first words do not show? `read_only(argv)`: is it a call
of the small set that can neither write nor run nor connect, and what does it read? `inner_commands(argv)`: what else
would run, guessed widely, to forbid it? Long options count in every abbreviation, short ones in every bundle.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Programs whose arguments are, or hold, another command.
WRAPPERS = frozenset(
    {
        *("env", "sudo", "doas", "su", "runuser", "timeout", "nice", "ionice", "chrt", "taskset", "nohup", "stdbuf"),
        *("setsid", "setarch", "linux32", "linux64", "flock", "chroot", "unshare", "nsenter", "bwrap", "firejail"),
        *("xargs", "parallel", "watch", "time", "strace", "ltrace", "gdb", "perf", "valgrind", "script", "expect"),
        *("ssh", "sshpass", "mosh", "busybox", "toybox", "systemd-run", "pkexec", "at", "batch", "crontab", "entr"),
        *("command", "builtin", "exec", "eval", "trap", "coproc", "noglob", "unbuffer", "rlwrap", "dbus-run-session"),
        *("xvfb-run", "fakeroot", "proot", "prlimit", "numactl", "cgexec", "ld.so", "ld-linux-x86-64.so.2", "setpriv"),
        *(
            "capsh",
            "hyperfine",
            "tmux",
            "screen",
            "dtach",
            "abduco",
            "daemonize",
            "start-stop-daemon",
            "choom",
            "uclampset",
        ),
    }
)

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "mksh", "ash", "fish", "csh", "tcsh", "rbash", "pwsh", "nu"})

# Builtins that change what later commands mean.
STATE_BUILTINS = frozenset(
    {
        *(
            ".",
            "source",
            "alias",
            "unalias",
            "export",
            "declare",
            "typeset",
            "readonly",
            "local",
            "set",
            "unset",
            "shopt",
        ),
        *(
            "enable",
            "hash",
            "read",
            "mapfile",
            "readarray",
            "let",
            "bind",
            "complete",
            "compgen",
            "compopt",
            "fc",
            "jobs",
        ),
        *(
            "history",
            "pushd",
            "popd",
            "dirs",
            "umask",
            "ulimit",
            "wait",
            "disown",
            "suspend",
            "getopts",
            "caller",
            "logout",
        ),
        *("exit", "return", "break", "continue", "shift", "fg", "bg", "help"),
    }
)

# Programs that run what a person types, or open files that do.
INTERACTIVE = frozenset(
    {
        *(
            "vi",
            "vim",
            "nvim",
            "view",
            "ex",
            "ed",
            "red",
            "emacs",
            "nano",
            "pico",
            "joe",
            "less",
            "more",
            "most",
            "man",
        ),
        *("info", "lldb", "ftp", "sftp", "telnet", "mail", "mutt", "top", "htop", "lynx", "w3m", "links", "elinks"),
        *("mc", "ranger", "nnn", "tig", "lazygit", "dialog", "whiptail", "rlogin", "rsh", "bc", "dc", "ghci", "irb"),
    }
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a program that run or write: `short` letters, `long` names without dashes, `words` that match as they
    stand (`-exec`)."""

    short: str = ""
    long: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()


# What an interpreter takes as code on its command line.
INTERPRETERS: dict[str, Options] = {
    "python": Options("ci", ("command",)),
    "pypy": Options("ci"),
    "ipython": Options("c"),
    "node": Options("epri", ("eval", "print", "require", "import", "interactive", "loader", "experimental-loader")),
    "nodejs": Options("epri", ("eval", "print", "require", "import", "interactive", "loader")),
    "bun": Options("eprc", ("eval", "print", "preload", "config"), frozenset({"x", "repl", "exec"})),
    "deno": Options("", ("import-map", "preload"), frozenset({"eval", "repl"})),
    "perl": Options("eEiMmIdx"),
    "ruby": Options("erIix"),
    "php": Options("rBREFdz", ("run", "process-begin", "process-code", "process-end", "define", "interactive")),
    "lua": Options("eil"),
    "luajit": Options("eilb"),
    "R": Options("ef", ("expression", "exec", "args")),
    "Rscript": Options("e"),
    "julia": Options("eEiLp", ("eval", "print", "load", "sysimage")),
    "tclsh": Options(),
    "osascript": Options("e"),
    "groovy": Options("e"),
    "scala": Options("e"),
    "elixir": Options("e", ("eval", "require", "rpc-eval")),
    "erl": Options("", ("eval",), frozenset({"-eval", "-run", "-s"})),
    "racket": Options("ei", ("eval",)),
    "guile": Options("cel"),
    "sbcl": Options("", ("eval", "load")),
    "clojure": Options("eiX", ("eval", "init")),
    "gawk": Options(
        "fEileo", ("file", "exec", "include", "load", "source", "profile", "pretty-print", "dump-variables")
    ),
    "awk": Options(
        "fEileo", ("file", "exec", "include", "load", "source", "profile", "pretty-print", "dump-variables")
    ),
    "mawk": Options("fWE", ("exec",)),
    "nawk": Options("f"),
    "sqlite3": Options("", ("init", "cmd"), frozenset({"-init", "-cmd", "-A", "-interactive"})),
    "psql": Options("cfoLv", ("command", "file", "output", "log-file", "set", "variable")),
    "mysql": Options("eP", ("execute", "pager", "tee", "init-command")),
}

_GIT_ANYWHERE = (
    *("output", "ext-diff", "textconv", "upload-pack", "receive-pack", "exec", "open-files-in-pager", "config"),
    *("config-env", "template", "git-dir", "work-tree", "namespace", "paginate", "run", "output-directory", "add-file"),
    *("upload-archive", "show-signature", "git-completion-helper", "tool", "extcmd", "interactive", "edit-description"),
)

# Options that run a program or write a file, of programs that are otherwise what they seem.
OPTIONS: dict[str, Options] = {
    "find": Options(
        words=frozenset(
            {"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls", "-files0-from"}
        )
    ),
    "fd": Options("xX", ("exec", "exec-batch")),
    "fdfind": Options("xX", ("exec", "exec-batch")),
    "sort": Options("oT", ("output", "compress-program", "temporary-directory", "files0-from")),
    "shuf": Options("o", ("output", "random-source")),
    "rg": Options("zf", ("pre", "pre-glob", "search-zip", "hostname-bin", "file", "ignore-file")),
    "grep": Options("f", ("file", "exclude-from")),
    "egrep": Options("f", ("file", "exclude-from")),
    "fgrep": Options("f", ("file", "exclude-from")),
    "ag": Options("z", ("pager", "search-zip")),
    "ack": Options("", ("pager", "output", "ackrc")),
    "bat": Options("", ("pager", "config-file", "diff"), frozenset({"cache"})),
    "tree": Options("o", ("fromfile", "output")),
    "xxd": Options("r", ("revert",)),
    "base64": Options("o", ("output",)),
    "date": Options("sf", ("set", "file")),
    "file": Options("Cmfz", ("compile", "magic-file", "files-from", "uncompress")),
    "hostname": Options("bF", ("file", "boot")),
    "wc": Options("", ("files0-from",)),
    "du": Options("X", ("files0-from", "exclude-from")),
    "tar": Options(
        "IFP",
        (
            *(
                "to-command",
                "use-compress-program",
                "checkpoint-action",
                "info-script",
                "new-volume-script",
                "rsh-command",
            ),
            *("rmt-command", "absolute-names", "index-file", "volno-file"),
        ),
    ),
    "zip": Options("T", ("test", "unzip-command")),
    "rsync": Options("e", ("rsh", "rsync-path", "daemon", "files-from", "log-file", "write-batch", "remote-option")),
    "scp": Options("SFo"),
    "curl": Options(
        "oOJKcDTQEw",
        (
            *("output", "output-dir", "remote-name", "remote-name-all", "remote-header-name", "config", "cookie-jar"),
            *("dump-header", "upload-file", "trace", "trace-ascii", "stderr", "etag-save", "hsts", "alt-svc", "quote"),
            *("libcurl", "write-out", "create-dirs", "engine", "unix-socket", "ftp-create-dirs"),
        ),
    ),
    "wget": Options(
        "oOaPei", ("output-file", "output-document", "append-output", "execute", "use-askpass", "input-file")
    ),
    "make": Options("fEIC", ("file", "makefile", "eval", "include-dir", "directory")),
    "go": Options(words=frozenset({"-exec", "-toolexec", "-vettool", "-overlay", "-modfile"})),
    "cargo": Options("Z", ("config",), frozenset({"install"})),
    "gcc": Options("B", ("wrapper",), frozenset({"-wrapper", "-specs"})),
    "cc": Options("B", (), frozenset({"-wrapper", "-specs"})),
    "npm": Options(
        "c", ("script-shell", "prefix", "userconfig", "call"), frozenset({"exec", "x", "explore", "config", "set"})
    ),
    "npx": Options("cp", ("call", "package")),
    "yarn": Options("", ("cwd", "use-yarnrc"), frozenset({"exec", "dlx", "node"})),
    "pnpm": Options("C", ("dir", "shell-mode", "config"), frozenset({"exec", "dlx"})),
    "pip": Options(
        "", ("python", "log", "config-settings", "global-option", "target", "prefix", "root"), frozenset({"config"})
    ),
    "pytest": Options("pc", ("basetemp", "rootdir", "junit-xml", "junitxml", "debug", "override-ini", "pastebin")),
    "split": Options("", ("filter",)),
    "iconv": Options("o", ("output",)),
    "jq": Options("fL", ("from-file", "rawfile", "slurpfile")),
    "yq": Options("is", ("inplace", "split-exp")),
    "diff": Options("", ("to-file", "from-file")),
    "ps": Options("eE"),
    "journalctl": Options("", ("vacuum-size", "vacuum-time", "vacuum-files", "rotate", "flush", "sync", "cursor-file")),
    "dmesg": Options("cCDEn", ("clear", "read-clear", "console-off", "console-on", "console-level")),
    "ip": Options("b", ("batch",), frozenset({"netns", "exec", "vrf"})),
    "docker": Options(
        "H", ("host", "config", "context"), frozenset({"exec", "run", "cp", "build", "buildx", "compose"})
    ),
    "kubectl": Options(
        "", ("kubeconfig", "kuberc"), frozenset({"exec", "cp", "run", "debug", "plugin", "edit", "proxy"})
    ),
    "openssl": Options("", ("engine", "provider"), frozenset({"-engine", "-out", "-keyout", "-writerand", "s_client"})),
    "gpg": Options("o", ("output", "photo-viewer", "exec-path", "homedir", "agent-program")),
    "cmake": Options("PE"),
    "rustc": Options("CZ"),
    "javac": Options("J"),
    "ruff": Options("", ("config", "output-file"), frozenset({"clean"})),
    "mypy": Options("", ("python-executable", "install-types", "config-file", "cache-dir")),
    "eslint": Options("o", ("output-file", "rulesdir", "resolve-plugins-relative-to", "config", "plugin", "parser")),
}

# Subcommands of git that run programs, open editors or change what git runs; and short options that do.
GIT_COMMANDS = frozenset(
    {
        *(
            "bisect",
            "filter-branch",
            "submodule",
            "difftool",
            "mergetool",
            "daemon",
            "shell",
            "credential",
            "send-email",
        ),
        *("instaweb", "gui", "gitk", "help", "citool", "web--browse", "remote-ext", "remote-fd", "hook", "maintenance"),
        *(
            "fast-import",
            "cvsserver",
            "http-backend",
            "svn",
            "p4",
            "archimport",
            "quiltimport",
            "for-each-repo",
            "scalar",
        ),
    }
)
GIT_SHORT = {
    "clone": "uc",
    "ls-remote": "u",
    "rebase": "xi",
    "archive": "o",
    "format-patch": "o",
    "grep": "Of",
    "init": "",
}
_GIT_GLOBAL_HARMLESS = frozenset(
    {"--no-pager", "--version", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects"}
)

# Programs that write what their operands name; a prefix rule for one of them does not reach protected files.
WRITERS = frozenset(
    {
        *("cp", "mv", "rm", "rmdir", "mkdir", "touch", "ln", "tee", "install", "chmod", "chown", "chgrp", "truncate"),
        *(
            "unlink",
            "link",
            "mkfifo",
            "mknod",
            "rsync",
            "dd",
            "shred",
            "patch",
            "unzip",
            "tar",
            "gzip",
            "gunzip",
            "split",
        ),
        *("csplit", "sponge", "setfacl", "xz", "bzip2", "zstd"),
    }
)


def program_of(argv: Sequence[str]) -> str:
    """The program's name without its folder and version: `/usr/bin/python3.11` is `python`."""
    return _program(argv[0])


@functools.lru_cache(maxsize=1024)
def _program(word: str) -> str:
    name = word.rpartition("/")[2]
    if name in INTERPRETERS or name in OPTIONS:
        return name
    return re.sub(r"[-.0-9]+$", "", name) or name


@functools.lru_cache(maxsize=1024)
def hazard(argv: tuple[str, ...], named: int = 1) -> str | None:
    """Why a rule about the first `named` words of a call does not cover the whole call, or None.

    A subcommand (`docker compose`) that the rule names is meant; an option or a wrapper is a hazard even then.
    """
    name = argv[0].rpartition("/")[2]
    program = program_of(argv)
    if _only_looks_up(argv):
        return None
    if name in WRAPPERS or program in WRAPPERS:
        return f"{name} runs another command"
    if name in STATE_BUILTINS:
        return f"{name} changes the shell itself"
    if name in INTERACTIVE:
        return f"{name} runs commands of its own"
    if program in SHELLS:
        return _code_hazard(argv, Options("csilO", ("rcfile", "init-file", "login", "command")))
    if program in ("awk", "gawk", "mawk", "nawk"):
        return _awk_hazard(argv, INTERPRETERS[program])
    if program in INTERPRETERS:
        return _code_hazard(argv, INTERPRETERS[program])
    if program == "git":
        return _git_hazard(argv, named)
    if program == "sed":
        return _sed_hazard(argv)
    if name in ("uniq", "xxd") and len(_operands(argv)) > 1:
        return f"{name} writes to its second file"
    if name == "printf" and ((argv[1:2] and argv[1].startswith("-v")) or _SETS_VARIABLE.search(" ".join(argv))):
        return "printf sets a variable"
    if name == "hostname" and _operands(argv):
        return "hostname sets the name of the machine"
    if name == "tar" and len(argv) > 1 and not argv[1].startswith("-"):
        argv = (name, f"-{argv[1]}", *argv[2:])  # tar's first word is a bundle of options with or without a dash
    options = OPTIONS.get(name) or OPTIONS.get(program)
    words = [word for word in argv[1:named] if word.startswith("-")]
    found = _option([*words, *argv[named:]], options) if options else None
    return f"{name} {found} can run a program or write a file" if found else None


def _only_looks_up(argv: Sequence[str]) -> bool:
    return argv[0] == "command" and tuple(argv[1:2]) in (("-v",), ("-V",))


def _operands(argv: Sequence[str]) -> list[str]:
    return [word for word in argv[1:] if word == "-" or not word.startswith("-")]


def _option(words: Sequence[str], options: Options) -> str | None:
    """The first word that is, abbreviates or bundles one of the options."""
    for word in words:
        if word in options.words or word.partition("=")[0] in options.words:
            return word
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            if name and any(option.startswith(name) for option in options.long):
                return word
        elif word[:1] == "-" and any(letter in options.short for letter in word[1:]):
            return word
    return None


# Modules of Python that run code from their arguments or input.
_CODE_MODULES = frozenset(
    {"timeit", "pdb", "code", "cProfile", "profile", "trace", "runpy", "IPython", "asyncio", "idlelib"}
)


def _code_hazard(argv: Sequence[str], options: Options) -> str | None:
    """For interpreters: options count up to the script's name; without one, the code comes from elsewhere."""
    name = argv[0].rpartition("/")[2]
    for index, word in enumerate(argv[1:], 1):
        if word == "-":
            return f"{name} reads code from its input"
        if not word.startswith(("-", "+")) and word not in options.words:
            return None
        if word == "-m" and program_of(argv) in ("python", "pypy") and index + 1 < len(argv):
            module = argv[index + 1]
            return f"{name} -m {module} runs code" if module in _CODE_MODULES else None
        if _option([word], options) or word.startswith("+"):
            return f"{name} {word} runs code"
        if word in ("--version", "-V", "--help", "-h"):
            return None
    return f"{name} reads code from its input"


_AWK_UNSAFE = re.compile(r"system|getline|print[^;}\n]*[|>]|\||>|@|fflush|close|ENVIRON|PROCINFO|/inet", re.IGNORECASE)


def _awk_hazard(argv: Sequence[str], options: Options) -> str | None:
    found = _option([word for word in argv[1:] if not word.startswith(("-F", "-v"))], options)
    if found:
        return f"awk {found} can run a program or write a file"
    if any(_AWK_UNSAFE.search(word) for word in argv[1:]):
        return "the awk program can run commands, read or write files"
    return None


def _git_hazard(argv: Sequence[str], named: int = 1) -> str | None:
    words = list(argv[1:])
    while words and words[0] in _GIT_GLOBAL_HARMLESS:
        words.pop(0)
    if not words or words[0].startswith("-"):
        return f"git {words[0]} changes what git runs" if words and words[0] != "--version" else None
    command, rest = words[0], words[1:]
    if command in GIT_COMMANDS and named < 2:
        return f"git {command} runs other programs"
    if command == "config" and not {"--get", "--list", "-l", "--get-all", "--get-regexp"} & set(rest[:1]):
        return "git config changes what git runs"
    found = _option(rest, Options(GIT_SHORT.get(command, ""), _GIT_ANYWHERE))
    if found and not (command in ("pull", "push", "fetch", "commit") and found in ("-u", "--set-upstream")):
        return f"git {command} {found} can run a program or write a file"
    if any("::" in word or word.startswith("ext:") for word in rest):
        return "a git address with '::' runs a program"
    return None


# The few sed scripts that only choose or replace: line numbers with p, d or q, and s/// without its flags w and e.
_SED_SCRIPT = re.compile(
    r"(?:\d+|\$)?(?:,(?:\d+|\$))?[pdq=]"
    r"|(?:(?:\d+|\$)(?:,(?:\d+|\$))?)?s([/|#,:])(?:[^\\\n\[]|\\.)*?\1(?:[^\\\n]|\\.)*?\1[gIip0-9]*"
    r"|/[A-Za-z0-9 _.^$-]*/(?:,/[A-Za-z0-9 _.^$-]*/)?[pd]"
)


def _sed_hazard(argv: Sequence[str]) -> str | None:
    words = list(argv[1:])
    scripts: list[str] = []
    operands: list[str] = []
    while words:
        word = words.pop(0)
        if word in ("-e", "--expression") and words:
            scripts.append(words.pop(0))
        elif word.startswith("-") and word not in (
            "-n",
            "-E",
            "-r",
            "-u",
            "-z",
            "-nE",
            "-nr",
            "-En",
            "--quiet",
            "--silent",
        ):
            return f"sed {word} can write a file or read its script from one"
        elif not word.startswith("-"):
            operands.append(word)
    scripts = scripts or operands[:1]
    if not scripts or not all(_is_plain_sed(script) for script in scripts):
        return "the sed script is not one that surely only reads"
    return None


def _is_plain_sed(script: str) -> bool:
    match = _SED_SCRIPT.fullmatch(script)
    if match is None:
        return False
    # A delimiter that stands more often than it must could end the command early.
    return match[1] is None or len(re.findall(r"(?<!\\)" + re.escape(match[1]), script)) == 3


# --- the set that only reads ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reader:
    """A program of the reading set: its harmless options, and which of its operands are paths.

    `short` letters stand alone, `valued` ones take a value; `long` and `long_valued` likewise. The first `skip` operands
    are no paths; `names_only` means that no operand is. `most` bounds the operands. `recursive` letters read whole trees.
    """

    short: str = ""
    valued: str = ""
    long: tuple[str, ...] = ()
    long_valued: tuple[str, ...] = ()
    skip: int = 0
    names_only: bool = False
    most: int | None = None
    recursive: str = ""
    here: bool = False
    always_recursive: bool = False


# Programs of which no option writes or runs anything, so that a wildcard may become one.
WILDCARD_PROOF = frozenset(
    {
        *(
            "cat",
            "head",
            "tail",
            "wc",
            "ls",
            "stat",
            "nl",
            "tac",
            "rev",
            "cut",
            "paste",
            "comm",
            "cmp",
            "diff",
            "fold",
            "expand",
        ),
        *(
            "od",
            "md5sum",
            "sha1sum",
            "sha256sum",
            "sha512sum",
            "b2sum",
            "cksum",
            "readlink",
            "realpath",
            "grep",
            "egrep",
        ),
        *("fgrep", "echo", "basename", "dirname", "test", "["),
    }
)


@dataclass(frozen=True, slots=True)
class Reads:
    """What a reading call reads: paths, and whether it goes down into folders."""

    paths: tuple[str, ...]
    recursive: bool = False


_GREP = Reader(
    "abcEFGhHiIlLnoPqsTvwxyzZr0123456789",
    "ABCm",
    (
        *("ignore-case", "invert-match", "word-regexp", "line-regexp", "count", "files-with-matches", "no-messages"),
        *("files-without-match", "only-matching", "quiet", "line-number", "with-filename", "no-filename", "recursive"),
        *("extended-regexp", "fixed-strings", "basic-regexp", "perl-regexp", "no-ignore-case", "text", "null", "color"),
    ),
    ("after-context", "before-context", "context", "max-count", "include", "exclude", "exclude-dir", "color", "colour"),
    skip=1,
    recursive="r",
)
_SUM = Reader("btz", long=("binary", "text", "tag", "zero"))

READERS: dict[str, Reader] = {
    "cat": Reader(
        "AbeEnstTuv", long=("number", "number-nonblank", "show-all", "show-ends", "show-tabs", "squeeze-blank")
    ),
    "head": Reader("qvz0123456789", "cn", ("quiet", "silent", "verbose"), ("lines", "bytes")),
    "tail": Reader("qvz0123456789", "cn", ("quiet", "silent", "verbose"), ("lines", "bytes")),
    "wc": Reader("clmLw", long=("bytes", "chars", "lines", "words", "max-line-length")),
    "ls": Reader(
        "aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxXZ1",
        "ITw",
        ("all", "almost-all", "human-readable", "recursive", "reverse", "directory", "inode", "size", "classify"),
        ("sort", "time", "format", "color", "time-style", "ignore", "hide", "width"),
        recursive="R",
        here=True,
    ),
    "stat": Reader("fLt", "c", ("dereference", "file-system", "terse"), ("format", "printf")),
    "du": Reader(
        "abchkHlmsSx0", "dBt", ("all", "bytes", "summarize", "total", "human-readable"), ("max-depth",), here=True
    ),
    "file": Reader("bihkLNprs0", "", ("brief", "mime", "mime-type", "mime-encoding", "dereference")),
    "nl": Reader("p", "bdfhilnsvw"),
    "tac": Reader("b"),
    "rev": Reader(),
    "cut": Reader("sz", "bcdf", ("complement", "only-delimited"), ("bytes", "characters", "delimiter", "fields")),
    "paste": Reader("sz", "d"),
    "comm": Reader("123z"),
    "cmp": Reader("bls", "n"),
    # Not recursive: diff follows the links that it finds.
    "diff": Reader(
        "abBcdeEinNpqstTuwyZ0123456789",
        "CUWx",
        ("brief", "unified", "side-by-side", "ignore-all-space", "ignore-case", "new-file", "color"),
        ("unified", "context", "color", "exclude"),
    ),
    "fold": Reader("bs", "w"),
    "expand": Reader("i", "t"),
    "od": Reader("abcdfilosxv", "ANjtw"),
    "strings": Reader("af", "nte"),
    "md5sum": _SUM,
    "sha1sum": _SUM,
    "sha256sum": _SUM,
    "sha512sum": _SUM,
    "b2sum": _SUM,
    "cksum": Reader(),
    "readlink": Reader("efmnqsvz"),
    "realpath": Reader("eLmPqsz"),
    "tr": Reader("cCdst", names_only=True),
    "uniq": Reader("cdDiuz", "fsw", ("count", "repeated", "unique", "ignore-case"), most=1),
    "sort": Reader("bcCdfghimMnrRsuVz", "kt", ("reverse", "unique", "numeric-sort", "human-numeric-sort"), ("key",)),
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "tree": Reader(
        "aAdfFhinpqrsStuvx", "IPL", ("dirsfirst", "gitignore", "noreport"), here=True, always_recursive=True
    ),
    "echo": Reader("neE", names_only=True),
    "printf": Reader(names_only=True),
    "pwd": Reader("LP", names_only=True),
    "true": Reader(names_only=True),
    "false": Reader(names_only=True),
    "whoami": Reader(names_only=True, most=0),
    "id": Reader("ugGnr", names_only=True),
    "uname": Reader("asnrvmpio", names_only=True, most=0),
    "nproc": Reader("", long=("all",), names_only=True, most=0),
    "uptime": Reader("ps", names_only=True, most=0),
    "arch": Reader(names_only=True, most=0),
    "tty": Reader("s", names_only=True, most=0),
    "basename": Reader("az", "s", names_only=True),
    "dirname": Reader("z", names_only=True),
    "seq": Reader("w", "fs", names_only=True),
    "expr": Reader(names_only=True),
    "sleep": Reader(names_only=True, most=1),
    "which": Reader("a", names_only=True),
    "type": Reader("aptP", names_only=True),
    "date": Reader("uRI", "dr", ("utc", "iso-8601"), ("date", "iso-8601", "rfc-3339"), names_only=True),
    "test": Reader("bcdefgGhkLnNOprsStuwxz", skip=0),
    "[": Reader("bcdefgGhkLnNOprsStuwxz", skip=0),
    # Neither -e nor --files, which turn the first operand into a path, nor -L, which follows links.
    "rg": Reader(
        "cFhHiIlnNoPsSUvwx",
        "ABCmgtT",
        (
            *("count", "files-with-matches", "files-without-match", "ignore-case", "line-number", "multiline"),
            *(
                "no-heading",
                "no-filename",
                "no-line-number",
                "only-matching",
                "smart-case",
                "word-regexp",
                "json",
                "stats",
            ),
        ),
        ("after-context", "before-context", "context", "max-count", "glob", "type", "color", "max-depth", "sort"),
        skip=1,
        here=True,
        always_recursive=True,
    ),
}

# What find may be told without running or writing anything; the valued ones take one word.
_FIND_WORDS = frozenset(
    {
        *(
            "-a",
            "-and",
            "-o",
            "-or",
            "-not",
            "!",
            "(",
            ")",
            ",",
            "-print",
            "-print0",
            "-ls",
            "-prune",
            "-empty",
            "-true",
        ),
        *(
            "-depth",
            "-mount",
            "-xdev",
            "-daystart",
            "-readable",
            "-writable",
            "-executable",
            "-nouser",
            "-nogroup",
            "-quit",
        ),
        *("-H", "-P", "-noleaf"),
    }
)
_FIND_VALUED = frozenset(
    {
        *(
            "-name",
            "-iname",
            "-path",
            "-ipath",
            "-wholename",
            "-regex",
            "-iregex",
            "-type",
            "-xtype",
            "-size",
            "-mtime",
        ),
        *(
            "-mmin",
            "-atime",
            "-amin",
            "-ctime",
            "-cmin",
            "-maxdepth",
            "-mindepth",
            "-perm",
            "-user",
            "-group",
            "-links",
        ),
        *("-regextype", "-inum", "-printf", "-uid", "-gid", "-lname", "-ilname"),
    }
)

# Reading subcommands of git, for trusted projects, and the options they may have.
_GIT_READS: dict[str, Reader] = {
    "status": Reader(
        "sbuvz", "", ("short", "branch", "porcelain", "long", "ignored", "untracked-files"), names_only=True
    ),
    "log": Reader(
        "pnz0123456789",
        "nSGL",
        (
            "oneline",
            "graph",
            "all",
            "stat",
            "decorate",
            "name-only",
            "name-status",
            "patch",
            "reverse",
            "merges",
            "no-merges",
        ),
        ("max-count", "since", "until", "author", "grep", "format", "pretty", "date", "after", "before", "abbrev"),
        names_only=True,
    ),
    "diff": Reader(
        "pwbz",
        "U",
        ("stat", "cached", "staged", "name-only", "name-status", "shortstat", "numstat", "check"),
        names_only=True,
    ),
    "show": Reader(
        "ps", "U", ("stat", "name-only", "name-status", "oneline", "no-patch"), ("format", "pretty"), names_only=True
    ),
    "rev-parse": Reader(
        "", "", ("abbrev-ref", "show-toplevel", "short", "verify", "is-inside-work-tree"), names_only=True
    ),
    "ls-files": Reader("cdmoz", "", ("cached", "deleted", "modified", "others", "exclude-standard"), names_only=True),
    "blame": Reader("lwest", "L", names_only=True),
    "branch": Reader("avr", "", ("all", "list", "show-current", "remotes"), names_only=True, most=0),
    "tag": Reader("l", "", ("list",), names_only=True, most=0),
    "remote": Reader("v", "", ("verbose",), names_only=True, most=0),
    "describe": Reader("", "", ("tags", "always", "dirty", "all"), ("abbrev",), names_only=True),
    "shortlog": Reader("sne", "", ("summary", "numbered", "email"), names_only=True),
    "merge-base": Reader(names_only=True),
    "cat-file": Reader("pste", names_only=True),
}


@functools.lru_cache(maxsize=1024)
def read_only(argv: tuple[str, ...], *, trusted: bool = False) -> Reads | None:
    """What a call of the reading set reads; None when the call is not surely one that only reads.

    `trusted` lets git read a repository whose configuration may run programs.
    """
    name = argv[0]
    if _only_looks_up(argv):
        return Reads(())
    if name == "find":
        return _find_reads(argv)
    if name == "git":
        return _git_reads(argv) if trusted else None
    if name == "sed":
        return _sed_reads(argv)
    reader = READERS.get(name)
    return None if reader is None else _reads(argv, reader)


# printf stores how much it has written under a name that it is given, and works out what stands in the name's brackets.
_SETS_VARIABLE = re.compile(r"%[^A-Za-z%]*[hlLjzt]*n")


def _reads(argv: Sequence[str], reader: Reader) -> Reads | None:
    if argv[0] == "printf" and ((argv[1:2] and argv[1].startswith("-")) or _SETS_VARIABLE.search(" ".join(argv))):
        return None
    operands: list[str] = []
    recursive = reader.always_recursive
    words = list(argv[1:])
    skip = reader.skip
    while words:
        word = words.pop(0)
        if word == "--":
            operands.extend(words)
            break
        if word == "-" or not word.startswith("-") or argv[0] in ("echo", "printf", "expr"):
            operands.append(word)
            continue
        takes_next = _harmless_option(word, reader)
        if takes_next is None:
            return None
        recursive = recursive or word in ("--recursive",) or (word[1] != "-" and _has_letter(word, reader))
        if takes_next and not words:
            return None
        if takes_next:
            words.pop(0)
    if argv[0] == "[":
        operands = [word for word in operands if word != "]"]
    if argv[0] == "date" and any(not word.startswith("+") for word in operands):
        return None
    if reader.most is not None and len(operands) > reader.most:
        return None
    return Reads(_paths(operands, reader, skip, recursive), recursive)


def _has_letter(word: str, reader: Reader) -> bool:
    return any(letter in reader.recursive for letter in word[1:])


def _paths(operands: Sequence[str], reader: Reader, skip: int, recursive: bool) -> tuple[str, ...]:
    if reader.names_only:
        return ()
    paths = tuple(word for word in operands[skip:] if word != "-")
    return paths or ((".",) if reader.here or recursive else ())


def _harmless_option(word: str, reader: Reader) -> bool | None:
    """Whether a harmless option takes the next word as its value; None for an option that is not known as harmless."""
    if word.startswith("--"):
        name, equals, _ = word[2:].partition("=")
        if equals:
            return False if name in reader.long_valued else None
        if name in reader.long:
            return False
        return True if name in reader.long_valued else None
    for index, letter in enumerate(word[1:], 1):
        if letter in reader.valued:
            return index == len(word) - 1
        if letter not in reader.short:
            return None
    return False


def _find_reads(argv: Sequence[str]) -> Reads | None:
    words = list(argv[1:])
    paths: list[str] = []
    while words and (words[0] in ("-H", "-P") or not words[0].startswith(("-", "(", "!", ","))):
        word = words.pop(0)
        if not word.startswith("-"):
            paths.append(word)
    while words:
        word = words.pop(0)
        if word in _FIND_VALUED:
            if not words:
                return None
            words.pop(0)
        elif word not in _FIND_WORDS:
            return None
    return Reads(tuple(paths) or (".",), True)


def _git_reads(argv: Sequence[str]) -> Reads | None:
    words = [word for word in argv[1:] if word not in _GIT_GLOBAL_HARMLESS]
    if not words or _git_hazard(argv):
        return None
    reader = _GIT_READS.get(words[0])
    if reader is None or any(word.startswith(("/", "~")) or ".." in word.split("/") for word in words[1:]):
        return None
    return _reads(words, reader)


def _sed_reads(argv: Sequence[str]) -> Reads | None:
    if _sed_hazard(argv):
        return None
    has_e = any(word in ("-e", "--expression") for word in argv)
    operands: list[str] = []
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if word in ("-e", "--expression"):
            words.pop(0)
        elif not word.startswith("-"):
            operands.append(word)
    return Reads(tuple(operands if has_e else operands[1:]))


# --- what else would run -------------------------------------------------------------------------------------------------


_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"})


def inner_commands(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every argument list that could run inside this one: all the tails of a wrapper's, guessed widely."""
    name = argv[0].rpartition("/")[2]
    first = 1
    if name in ("find", "fd", "fdfind"):
        first = next((index + 1 for index, word in enumerate(argv) if word in _FIND_RUNS), len(argv))
    elif name in ("docker", "podman", "kubectl", "npm", "yarn", "pnpm"):
        first = next((i + 1 for i, word in enumerate(argv) if word in ("exec", "run", "x", "dlx", "--")), len(argv))
    elif name != "npx" and (name not in WRAPPERS or _only_looks_up(argv)):
        first = len(argv)
    for start in range(first, len(argv)):
        yield tuple(argv[start:])


def takes_code(argv: Sequence[str]) -> bool:
    """Whether the program may run text that it gets from its arguments or its input."""
    name, program = argv[0].rpartition("/")[2], program_of(argv)
    if _only_looks_up(argv):
        return False
    return program in SHELLS or program in INTERPRETERS or name in WRAPPERS
