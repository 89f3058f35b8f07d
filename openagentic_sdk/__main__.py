"""Run the command `openagentic-sdk`: from its script, from a bundle, or uninstalled as `python3 -m openagentic_sdk`."""

import signal
import sys


def main() -> int:
    """Run the command line; return the exit code.

    Until the command is imported, and once it has ended, Ctrl-C ends the process at once and without
    a traceback, unless the process ignores that signal.
    """
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as in the background of a shell script
    if not is_ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli.main import main as run_command  # here: these imports take most of the time of a short command

    try:
        if not is_ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run_command()
    except KeyboardInterrupt:  # a second Ctrl-C, while the first was being reported
        return 128 + signal.SIGINT
    finally:
        if not is_ignored:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
