"""Tables of programs: what runs other commands, what takes code, which options run or write, and what only reads.

Data only; `programs` asks the questions. A program that is missing from a table of hazards is taken for what it seems, so
these lists err on the long side; a program that is missing from `READERS` is never run without a rule or a question.
"""

from __future__ import annotations

from functools import cached_property

from ..ground.frozen import frozen
from .shell import word_set, words

# Programs whose arguments are, or hold, another command.
WRAPPERS = word_set("""
    env sudo doas su runuser timeout nice ionice chrt taskset nohup stdbuf setsid setarch linux32 linux64 flock chroot
    unshare nsenter bwrap firejail xargs parallel watch time strace ltrace gdb perf valgrind script expect ssh sshpass
    mosh busybox toybox systemd-run pkexec at batch crontab entr command builtin exec eval trap coproc noglob unbuffer
    rlwrap dbus-run-session xvfb-run fakeroot proot prlimit numactl cgexec ld.so ld-linux-x86-64.so.2 setpriv capsh
    hyperfine tmux screen dtach abduco daemonize start-stop-daemon choom uclampset gosu su-exec setuidgid chpst
    softlimit run0 sg newgrp runcon aa-exec sem proxychains proxychains4 torsocks torify faketime cpulimit logsave
    catchsegv stap chronic ifne systemd-inhibit systemd-cat caffeinate arch x86_64 i386 uname26 dumb-init tini catatonit
    watchexec nodemon concurrently cross-env env-cmd dotenv nix-shell ld-linux.so.2 ld-linux-aarch64.so.1
    ld-linux-armhf.so.3 ld-musl-x86_64.so.1 ld-musl-aarch64.so.1 agetty ansible ansible-test aoss apptainer autossh
    bear bpftrace bubblewrap busctl ccache cdist chamber claude clush codex compiledb cssh csvtool dagger dchroot
    distcc distrobox dosbox dsh dtruss dvtm eatmydata envchain envdir envuidgid fab fakechroot
    forever foreman gemini genie gksu gksudo gnome-terminal goreman grc heaptrack honcho icecc incrontab ksu kdesu
    kitty konsole ksshell lxc-attach lxc-execute machinectl mispipe msgfilter multitime nc ncat netcat nsjail ltrace
    minijail0 openvt overmind pdsh pee pexec pidstat plymouth pm2 pssh reflex remsh retry rexec rr run-mailcap
    run-parts runscript salt-call sandbox-exec sash sccache scan-build schroot scrot service setlock singularity socat
    socksify ssh-agent ssh-copy-id supervisord sux sysdig systemd-nspawn systemd-socket-activate task tcpserver
    tcpsvd tmate toolbox torsocks trickle tsocks uftrace urxvt userv usewithtor x-terminal-emulator
    xdg-open xdg-user-dir xdotool xterm zrun gdbserver lldb-server limactl multipass vagrant wsl cmd.exe
""")

# Programs that fetch a command and run it with the words behind its name.
FETCHERS = frozenset({"npx", "pnpx", "bunx", "uvx", "pipx"})

# Programs with a subcommand or option behind which another command stands.
LAUNCHERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("docker", "podman", "nerdctl", "kubectl", "npm", "yarn", "pnpm", "bun"),
        frozenset({"exec", "run", "x", "dlx", "--"}),
    ),
    **dict.fromkeys(
        ("uv", "poetry", "pipenv", "pdm", "rye", "hatch", "conda", "mamba", "micromamba", "op", "doppler", "flatpak"),
        frozenset({"run", "--"}),
    ),
    **dict.fromkeys(
        ("bundle", "mise", "asdf", "rbenv", "pyenv", "nodenv", "direnv", "aws-vault", "lxc", "corepack"),
        frozenset({"exec", "x", "--"}),
    ),
    "nix": frozenset({"--command", "-c", "run"}),
    "git": frozenset({"run", "foreach", "--exec", "-x", "--extcmd"}),
    **dict.fromkeys(words("ctr crictl oc cabal stack rustup volta fnm nvm"), frozenset({"exec", "run", "--"})),
    **dict.fromkeys(
        words("sops berglas infisical teller summon dotenvx railway heroku"), frozenset({"run", "exec", "--"})
    ),
}

SHELLS = word_set(
    "bash sh dash zsh ksh mksh ash fish csh tcsh rbash pwsh powershell nu elvish posh yash sash xonsh hush oksh rc"
)

# Builtins that change what later commands mean.
STATE_BUILTINS = word_set("""
    . source alias unalias export declare typeset readonly local set unset shopt enable hash read mapfile readarray let
    bind complete compgen compopt fc jobs history pushd popd dirs umask ulimit wait disown suspend getopts caller logout
    exit return break continue shift fg bg help
""")

# Programs that run what a person types, or open files that do.
INTERACTIVE = word_set("""
    vi vim nvim view ex ed red emacs nano pico joe less more most man info lldb ftp sftp telnet mail mutt top htop lynx
    w3m links elinks mc ranger nnn tig lazygit dialog whiptail rlogin rsh bc dc ghci irb lftp ncftp minicom picocom cu pry
    byebug pg zless zmore bzless xzless vigr vipw visudo vipe vidir sensible-editor sensible-pager select-editor rview rvim
    gvim vimdiff vimtutor micro helix hx kak perlbug bashbug reportbug octave octave-cli gnuplot maxima gp gforth
    wish jshell jrunscript jjs clisp ecl sage slsh pdb m4 wireshark xmore alpine crash gimp facter puppet knife sshfs
    fail2ban-client bconsole virsh smbclient apache2ctl
    """)


@frozen
class Options:
    """Options of a program that run or write: `short` letters, `long` names without dashes, `words` that match as they
    stand (`-exec`). `valued` letters and `valued_words` do neither, but the next word may be their value."""

    short: str = ""
    long: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    valued: str = ""
    valued_words: frozenset[str] = frozenset()

    @cached_property
    def letters(self) -> frozenset[str]:
        """The short letters, to be compared with a bundle."""
        return frozenset(self.short)

    @cached_property
    def long_lines(self) -> str:
        """The long names with a line break before each: what one of them begins with stands in it behind a break."""
        return "".join(f"\n{name}" for name in self.long)


_AWK = Options(
    "fEileopdDW",
    ("file", "exec", "include", "load", "source", "profile", "pretty-print", "dump-variables", "debug"),
)
_NODE = Options(
    "epri",
    words("""
        eval print require import interactive loader experimental-loader env-file input-type openssl-config run
    """),
    valued="C",
    valued_words=word_set("""
        --conditions --title --icu-data-dir --redirect-warnings --diagnostic-dir --watch-path --unhandled-rejections
        --trace-event-categories --dns-result-order --test-name-pattern --test-reporter --test-reporter-destination
        --max-http-header-size --stack-trace-limit
    """),
)

# What an interpreter takes as code on its command line.
INTERPRETERS: dict[str, Options] = {
    "python": Options("ci", ("command",), valued="WXm", valued_words=frozenset({"--check-hash-based-pycs"})),
    "pypy": Options("ci", valued="WXm"),
    "ipython": Options("c"),
    "node": _NODE,
    "nodejs": _NODE,
    "bun": Options("eprc", ("eval", "print", "preload", "config"), frozenset({"x", "repl", "exec"})),
    "deno": Options("", ("import-map", "preload"), frozenset({"eval", "repl"})),
    "perl": Options("eEiMmIdx"),
    "ruby": Options("erIix", valued="CEX", valued_words=frozenset({"--encoding", "--external-encoding"})),
    "php": Options(
        "rBREFdza", ("run", "process-begin", "process-code", "process-end", "define", "interactive"), valued="ctS"
    ),
    "lua": Options("eil"),
    "luajit": Options("eilb"),
    "R": Options("ef", ("expression", "exec", "args"), valued="dg"),
    "Rscript": Options("e"),
    "julia": Options("eEiLpJ", ("eval", "print", "load", "sysimage"), valued="tCHO"),
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
    "gawk": _AWK,
    "awk": _AWK,
    "mawk": Options("fWE", ("exec",)),
    "nawk": Options("f"),
    "sqlite3": Options(),
    "psql": Options(),
    "mysql": Options(),
    "mariadb": Options(),
}

PYTHONS = frozenset({"python", "pypy"})
RUN_A_SCRIPT = frozenset({"deno", "bun"})

# What makes an interpreter say something about itself and end; `--version` and `--help` where nothing else stands here.
INFORMS: dict[str, tuple[str, ...]] = {
    "python": ("--version", "-V", "--help", "-h"),
    "pypy": ("--version", "-V", "--help", "-h"),
    "node": ("--version", "-v", "--help", "-h"),
    "nodejs": ("--version", "-v", "--help", "-h"),
    "perl": ("--version", "-v", "-V", "--help", "-h"),
    "ruby": ("--version", "--help", "-h"),
    "php": ("--version", "-v", "--help", "-h", "-m", "-i"),
}

SQLITE_HARMLESS = word_set("""
    readonly header noheader csv json column line list html markdown box table batch bail echo version help ascii quote
    safe stats tabs
""")

GIT_ANYWHERE = words("""
    output ext-diff textconv upload-pack receive-pack exec open-files-in-pager config config-env template git-dir
    work-tree namespace paginate run output-directory add-file upload-archive show-signature git-completion-helper tool
    extcmd interactive edit-description unsafe-paths filters
""")

# What makes a shell run something else than the script that it names.
SHELL_OPTIONS = Options("csilO", ("rcfile", "init-file", "login", "command"), valued="o")

_COMPILER = Options("B", ("wrapper", "specs", "plugin"), frozenset({"-wrapper", "-specs", "-fplugin", "-load"}))

# Options that run a program or write a file, of programs that are otherwise what they seem.
OPTIONS: dict[str, Options] = {
    "find": Options(words=word_set("-exec -execdir -ok -okdir -delete -fprint -fprint0 -fprintf -fls -files0-from")),
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
    "tree": Options("oR", ("fromfile", "output")),
    "xxd": Options("r", ("revert",)),
    "base64": Options("o", ("output",)),
    "date": Options("sf", ("set", "file")),
    "file": Options("Cmfz", ("compile", "magic-file", "files-from", "uncompress")),
    "hostname": Options("bF", ("file", "boot")),
    "wc": Options("", ("files0-from",)),
    "du": Options("X", ("files0-from", "exclude-from")),
    "tar": Options(
        "IFP",
        words("""
            to-command use-compress-program checkpoint-action info-script new-volume-script rsh-command rmt-command
            absolute-names index-file volno-file
        """),
    ),
    "zip": Options("T@", ("test", "unzip-command")),
    "rsync": Options("e", ("rsh", "rsync-path", "daemon", "files-from", "log-file", "write-batch", "remote-option")),
    "scp": Options("SFo"),
    "curl": Options(
        "oOJKcDTQEwn",
        words("""
            output output-dir remote-name remote-name-all remote-header-name config cookie-jar dump-header upload-file
            trace trace-ascii stderr etag-save hsts alt-svc quote libcurl write-out create-dirs engine
            netrc netrc-optional netrc-file variable unix-socket
            ftp-create-dirs
        """),
    ),
    "wget": Options(
        "oOaPei",
        words("""
            output-file output-document append-output execute use-askpass input-file config directory-prefix
            save-cookies post-file body-file warc-file hsts-file rejected-log
        """),
    ),
    **dict.fromkeys(
        words("make gmake bmake pmake remake"),
        Options("fEIC", ("file", "makefile", "eval", "include-dir", "directory")),
    ),
    "rake": Options("fpeErRIg", words("rakefile execute execute-print execute-continue require libdir rakelib system")),
    "just": Options("fdc", words("justfile working-directory command shell shell-arg shell-command set chooser edit")),
    "ninja": Options("fC"),
    "scons": Options("fCDI", words("file sconstruct directory include-dir site-dir")),
    **dict.fromkeys(
        words("invoke inv nox doit waf mage gulp jake grunt tox"), Options("fcCrdx", words("config search-root"))
    ),
    "ant": Options("", (), word_set("-f -file -buildfile -lib -listener -logger -propertyfile -inputhandler")),
    "mvn": Options("fsP", words("file settings toolchains global-settings")),
    **dict.fromkeys(
        words("gradle gradlew"), Options("bcIp", words("build-file settings-file init-script project-dir"))
    ),
    **dict.fromkeys(
        words("bazel bazelisk buck2"),
        Options("", words("run_under script_path bazelrc output_user_root workspace_status_command")),
    ),
    "meson": Options("C"),
    "pre-commit": Options("c", ("config",), frozenset({"try-repo"})),
    **dict.fromkeys(
        words("rpm rpmdb rpmquery rpmverify rpmbuild rpmspec rpmkeys"),
        Options("ED", words("eval pipe define rcfile macros load")),
    ),
    **dict.fromkeys(words("apt apt-get apt-cache aptitude apt-mark"), Options("oct", words("option config-file"))),
    "hg": Options("", words("config debugger configfile")),
    "svn": Options("", words("config-option config-dir diff-cmd diff3-cmd editor-cmd")),
    **dict.fromkeys(
        words("tex latex pdftex pdflatex luatex lualatex xetex xelatex"),
        Options(
            "",
            words("shell-escape enable-write18 ini lua"),
            word_set("-shell-escape -enable-write18 -ini -lua"),
        ),
    ),
    "latexmk": Options("er", words("latex pdflatex lualatex xelatex"), frozenset()),
    "dvips": Options("R"),
    "enscript": Options("I", ("filter",)),
    "a2ps": Options("", ("define", "printer")),
    "ghc": Options("eF", ("interactive",), word_set("-pgmF -pgmL -pgmP -pgmc -pgml -fplugin")),
    **dict.fromkeys(words("gs ghostscript"), Options("c", (), word_set("-dNOSAFER -dDELAYSAFER"))),
    "java": Options("", (), word_set("-agentpath -agentlib -javaagent")),
    "tcpdump": Options("zwr", ("postrotate-command",)),
    "tshark": Options("Xw"),
    "nmap": Options("", words("script datadir servicedb interactive")),
    **dict.fromkeys(words("iptables ip6tables"), Options("M", ("modprobe",))),
    "openvpn": Options(
        "",
        words(
            "up down ipchange route-up route-pre-down tls-verify client-connect plugin config cd script-security iproute"
        ),
    ),
    **dict.fromkeys(words("dhclient dhcpcd"), Options("", (), word_set("-sf -cf -pf -c --script"))),
    "dnsmasq": Options("C", words("conf-script dhcp-script conf-file")),
    "aria2c": Options(
        "",
        words(
            "on-bt-download-complete on-download-complete on-download-error on-download-pause"
            " on-download-start on-download-stop conf-path input-file"
        ),
    ),
    "yt-dlp": Options("", words("exec config-locations external-downloader netrc-cmd plugin-dirs postprocessor-args")),
    **dict.fromkeys(words("cowsay cowthink"), Options("f")),
    "exiftool": Options("", (), word_set("-if -config -execute")),
    **dict.fromkeys(words("mongo mongosh"), Options("", ("eval", "shell"))),
    "sftp": Options("DSoF"),
    **dict.fromkeys(
        words("fzf sk"), Options("", words("bind preview listen listen-unsafe history with-shell interactive cmd"))
    ),
    "cpio": Options("opEFHIOM", words("create pass-through file rsh-command")),
    "ssh-keygen": Options("DwP"),
    "go": Options(
        "",
        ("exec", "toolexec", "vettool", "overlay", "modfile"),
        word_set("-exec -toolexec -vettool -overlay -modfile -w"),
    ),
    "cargo": Options("Z", ("config",), frozenset({"install", "exec"})),
    **dict.fromkeys(words("gcc cc clang g++ c++ clang++ gfortran"), _COMPILER),
    "npm": Options(
        "cC",
        ("script-shell", "prefix", "userconfig", "globalconfig", "node-options", "call"),
        frozenset({"exec", "x", "explore", "config", "set"}),
    ),
    "npx": Options("cp", ("call", "package")),
    **dict.fromkeys(("uv", "poetry", "pipenv", "pdm", "rye", "hatch", "conda"), Options(words=frozenset({"run"}))),
    **dict.fromkeys(("bundle", "mise", "asdf", "rbenv", "pyenv", "direnv"), Options(words=frozenset({"exec", "x"}))),
    "yarn": Options("", ("cwd", "use-yarnrc"), frozenset({"exec", "dlx", "node"})),
    "pnpm": Options("C", ("dir", "shell-mode", "config"), frozenset({"exec", "dlx"})),
    "pip": Options(
        "", ("python", "log", "config-settings", "global-option", "target", "prefix", "root"), frozenset({"config"})
    ),
    "pytest": Options("pco", ("basetemp", "rootdir", "junit-xml", "junitxml", "debug", "override-ini", "pastebin")),
    "split": Options("", ("filter",)),
    "iconv": Options("o", ("output",)),
    "jq": Options("fL", ("from-file", "rawfile", "slurpfile")),
    "yq": Options("is", ("inplace", "split-exp")),
    "diff": Options("", ("to-file", "from-file")),
    "ps": Options("eE"),
    "journalctl": Options("", ("vacuum-size", "vacuum-time", "vacuum-files", "rotate", "flush", "sync", "cursor-file")),
    "dmesg": Options("cCDEn", ("clear", "read-clear", "console-off", "console-on", "console-level")),
    "ip": Options("b", ("batch",), frozenset({"netns", "exec", "vrf"})),
    **dict.fromkeys(
        words("docker podman nerdctl"),
        Options(
            "H",
            words("host config context url connection"),
            word_set("exec run cp build buildx compose create"),
        ),
    ),
    **dict.fromkeys(words("ctr crictl lxc"), Options("", (), word_set("exec run launch start"))),
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
GIT_COMMANDS = word_set("""
    bisect filter-branch submodule difftool mergetool daemon shell credential send-email instaweb gui gitk help citool
    web--browse remote-ext remote-fd hook maintenance fast-import cvsserver http-backend svn p4 archimport quiltimport
    for-each-repo scalar
""")
# Subcommands that run what they are given, also under a rule that names them, and their operations that do not.
GIT_SAFE = {
    "bisect": word_set("start good bad new old skip reset log terms next replay"),
    "submodule": word_set("status init sync summary deinit absorbgitdirs add update set-url set-branch"),
    **dict.fromkeys(words("difftool mergetool filter-branch hook for-each-repo instaweb daemon shell"), frozenset()),
}
GIT_SHORT = {
    "clone": "uc",
    "ls-remote": "u",
    "rebase": "xi",
    "difftool": "xt",
    "archive": "o",
    "format-patch": "o",
    "grep": "Of",
    "init": "",
}
GIT_GLOBAL_HARMLESS = word_set("""
    --no-pager --version --no-optional-locks --literal-pathspecs --no-replace-objects
""")

# Programs that write what their operands name; a prefix rule for one of them does not reach protected files.
WRITERS = word_set("""
    cp mv rm rmdir mkdir touch ln tee install chmod chown chgrp truncate unlink link mkfifo mknod rsync dd shred patch
    unzip tar gzip gunzip split csplit sponge rename setfacl xz bzip2 zstd
""")

# Subcommands of git that write, or throw away, the files that they name.
GIT_WRITES = frozenset({"checkout", "restore", "rm", "mv", "clean", "apply", "reset"})

# Programs that take folders with all that lies below them, always or with one of these options; and those that take the
# folder they run in when they name none.
TREE_PROGRAMS: dict[str, Options] = {
    **dict.fromkeys(
        words("grep egrep fgrep zgrep rgrep"), Options("rRd", words("recursive dereference-recursive directories"))
    ),
    **dict.fromkeys(words("rgrep rg ag ack ack-grep ugrep ug sift"), Options()),
    **dict.fromkeys(words("mv rsync tar bsdtar zip 7z 7za 7zr cpio pax jar diff sdiff rclone restic borg"), Options()),
    **dict.fromkeys(words("cp scp rm"), Options("rRa", words("recursive archive"))),
    **dict.fromkeys(words("chmod chown chgrp"), Options("R", words("recursive"))),
    "find": Options(words=word_set("-exec -execdir -ok -okdir -delete")),
    **dict.fromkeys(words("fd fdfind"), Options("xX", words("exec exec-batch"))),
    **dict.fromkeys(words("docker podman nerdctl"), Options(words=frozenset({"cp"}))),
    **dict.fromkeys(words("python python3"), Options(words=word_set("http.server zipfile tarfile"))),
    "aws": Options(words=frozenset({"sync", "--recursive"})),
}
IMPLICIT_TREES = word_set("grep egrep fgrep zgrep rgrep rg ag ack ack-grep ugrep ug sift git find fd fdfind")

# With these, a program goes where the links in a folder lead.
FOLLOWS_LINKS: dict[str, Options] = {
    **dict.fromkeys(words("grep egrep fgrep zgrep rgrep"), Options("R", ("dereference-recursive",))),
    **dict.fromkeys(words("ls du cp rsync chown chmod chgrp"), Options("LH", words("dereference copy-links"))),
    **dict.fromkeys(words("rg fd fdfind"), Options("L", ("follow",))),
    "ag": Options("fL", ("follow",)),
    "find": Options("LH", (), frozenset({"-follow"})),
    "tree": Options("l"),
    **dict.fromkeys(words("diff zip scp"), Options("r", words("recursive recurse-paths"))),
    **dict.fromkeys(words("tar bsdtar"), Options("hL", ("dereference",))),
}

# Programs that neither tell nor change the content of a file that an operand names, and such subcommands.
NEVER_READS = word_set("""
    echo printf true false : sleep kill exit return test [ [[ cd pushd popd pwd basename dirname seq expr date export
    unset shift let read wait which type id whoami uname mkdir rmdir touch ls stat du nproc hostname jobs umask ulimit
    hash case select trap local declare typeset readonly set break continue tty ps pgrep pkill killall nice logger
    """)
NEVER_READS_IN = {
    "git": word_set("""
        commit checkout switch push pull fetch merge rebase branch tag status rev-parse remote clone init reset restore
        worktree describe config cherry-pick revert log rev-list ls-files ls-remote for-each-ref symbolic-ref merge-base
        """),
    "gh": word_set("pr issue label run repo search auth"),
    "glab": word_set("mr issue label ci repo"),
}

# Modules of Python that run code from their arguments or input.
CODE_MODULES = word_set("timeit pdb code cProfile profile trace runpy IPython asyncio idlelib")


# --- the set that only reads ---------------------------------------------------------------------------------------------


@frozen
class Reader:
    """A program of the reading set: its harmless options, and which of its operands are paths.

    `short` letters stand alone, `valued` ones take a value; `long` and `long_valued` likewise. `optional` letters and
    `long_optional` names may have a value in the same word, never in the next one. The first `skip` operands
    are no paths; `names_only` means that no operand is. `most` bounds the operands. `recursive` letters read whole trees,
    `always_recursive` programs do so anyway, `here` ones read the current folder when they are given none. `takes_all`
    programs have no options. `is_expression` programs read every word, `--` does not end their options. `plain` and
    `plain_valued` are options that are whole words (`-json`).
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
    takes_all: bool = False
    is_expression: bool = False
    optional: str = ""
    long_optional: tuple[str, ...] = ()
    plain: frozenset[str] = frozenset()
    plain_valued: frozenset[str] = frozenset()

    def takes_next(self, word: str) -> bool | None:
        """Whether a harmless option takes the next word as its value; None for an option that is not known as harmless."""
        if word in self.plain:
            return False
        name, equals, _ = word.partition("=")
        if name in self.plain_valued:
            return not equals
        if word.startswith("--"):
            name = name[2:]
            if name in self.long_optional:
                return False
            if equals:
                return False if name in self.long_valued else None
            if name in self.long:
                return False
            return True if name in self.long_valued else None
        for index, letter in enumerate(word[1:], 1):
            if letter in self.optional:
                return False  # the rest of the word is its value
            if letter in self.valued:
                return index == len(word) - 1
            if letter not in self.short:
                return None
        return False


# Programs that only tell their version when that is all they are asked, wherever they run.
TELL_VERSION = word_set("""
    python python3 node npm ruby perl php lua gcc cc g++ clang cc make gmake cmake bash git docker kubectl pip pip3 curl
    wget tar gzip grep sed awk gawk jq sqlite3 openssl ssh rsync vim less find sort go ld as gdb strace
""")
# Programs of which no option writes or runs anything, so that a wildcard may become one.
WILDCARD_PROOF = word_set("""
    cat head tail wc ls stat nl tac rev cut paste comm cmp diff fold expand od md5sum sha1sum sha256sum sha512sum b2sum
    cksum readlink realpath grep egrep fgrep echo basename dirname du
""")


_GREP = Reader(
    "abcEFGhHiIlLnoPqsTvwxyzZr0123456789",
    "ABCem",
    words("""
        ignore-case invert-match word-regexp line-regexp count files-with-matches no-messages files-without-match
        only-matching quiet line-number with-filename no-filename recursive extended-regexp fixed-strings basic-regexp
        perl-regexp no-ignore-case text null
    """),
    ("after-context", "before-context", "context", "max-count", "include", "exclude", "exclude-dir"),
    skip=1,
    recursive="r",
    long_optional=("color", "colour"),
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
        ("all", "almost-all", "human-readable", "recursive", "reverse", "directory", "inode", "size"),
        ("sort", "time", "format", "time-style", "ignore", "hide", "width"),
        recursive="R",
        here=True,
        long_optional=("color", "classify", "hyperlink"),
    ),
    "stat": Reader("fLt", "c", ("dereference", "file-system", "terse"), ("format", "printf")),
    "du": Reader(
        "abchkHlmsSx0", "dBt", ("all", "bytes", "summarize", "total", "human-readable"), ("max-depth",), here=True
    ),
    "file": Reader("bihkLNrs0", "", ("brief", "mime", "mime-type", "mime-encoding", "dereference")),
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
        ("brief", "unified", "side-by-side", "ignore-all-space", "ignore-case", "new-file"),
        ("exclude",),
        long_optional=("unified", "context", "color"),
    ),
    "fold": Reader("bs", "w"),
    "expand": Reader("i", "t"),
    "od": Reader("abcdfilosxv", "ANjt", optional="w", long_optional=("width",)),
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
    "echo": Reader(names_only=True, takes_all=True),
    "printf": Reader(names_only=True, takes_all=True),
    "pwd": Reader("LP", names_only=True),
    "true": Reader(names_only=True),
    "false": Reader(names_only=True),
    "whoami": Reader(names_only=True, most=0),
    "id": Reader("ugGnr", names_only=True),
    "uname": Reader("asnrvmpio", names_only=True, most=0),
    "nproc": Reader("", long=("all",), names_only=True, most=0),
    # Commands get an environment without secrets.
    "env": Reader("0", "", ("null",), names_only=True, most=0),
    "printenv": Reader("0", "", ("null",), names_only=True),
    "ps": Reader(
        "AaedfFlLHjyTMNwchrx",
        "CGgopqtsUu",
        ("no-headers", "forest", "cumulative", "deselect"),
        ("pid", "ppid", "user", "format", "sort", "group", "tty", "cols", "columns", "width"),
        names_only=True,
    ),
    "jq": Reader(
        "rcnseSaCMjV",
        "",
        words("""
            raw-output compact-output null-input slurp exit-status sort-keys ascii-output color-output monochrome-output
            join-output raw-input tab arg argjson args jsonargs version seq stream
        """),
        ("indent",),
        skip=1,
    ),
    "free": Reader(
        "bkmghtlw", "", ("human", "total", "wide", "bytes", "kilo", "mega", "giga"), names_only=True, most=0
    ),
    "df": Reader("ahHiklPT", "tx", ("human-readable", "inodes", "local", "portability", "print-type", "total")),
    "lsb_release": Reader("aidrcs", long=("all", "id", "description"), names_only=True, most=0),
    "getconf": Reader("a", names_only=True),
    "lscpu": Reader("aebcpyJ", long=("all", "extended", "parse", "json"), names_only=True, most=0),
    "uptime": Reader("ps", names_only=True, most=0),
    "arch": Reader(names_only=True, most=0),
    "tty": Reader("s", names_only=True, most=0),
    "basename": Reader("az", "s", names_only=True),
    "dirname": Reader("z", names_only=True),
    "seq": Reader("w", "fs", names_only=True),
    "expr": Reader(names_only=True, takes_all=True),
    "sleep": Reader(names_only=True, most=1),
    "which": Reader("a", names_only=True),
    "type": Reader("aptP", names_only=True),
    "date": Reader(
        "uR", "dr", ("utc",), ("date", "rfc-3339"), names_only=True, optional="I", long_optional=("iso-8601",)
    ),
    "test": Reader("bcdefgGhkLnNOprsStuwxz", is_expression=True),
    "[": Reader("bcdefgGhkLnNOprsStuwxz", is_expression=True),
    # Without -L, which follows links.
    "rg": Reader(
        "cFhHiIlnNoPsSUvwx",
        "ABCemgtT",
        words("""
            count files-with-matches files-without-match ignore-case line-number multiline no-heading no-filename
            no-line-number files hidden only-matching smart-case word-regexp json stats
        """),
        ("after-context", "before-context", "context", "max-count", "glob", "type", "color", "max-depth", "sort"),
        skip=1,
        here=True,
        always_recursive=True,
    ),
}

# What find may be told without running or writing anything; the valued ones take one word.
FIND_WORDS = word_set("""
    -a -and -o -or -not -d -false ! ( ) , -print -print0 -ls -prune -empty -true -depth -mount -xdev -daystart -readable
    -writable -executable -nouser -nogroup -quit -H -P -noleaf
""")
FIND_VALUED = word_set("""
    -name -iname -path -ipath -wholename -regex -iregex -type -xtype -size -mtime -mmin -atime -amin -ctime -cmin
    -maxdepth -mindepth -perm -user -group -links -regextype -inum -printf -uid -gid -lname -ilname -fstype -newermt
    -newerct -newerat -used -context
""")
