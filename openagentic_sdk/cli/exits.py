"""The exit codes of the command."""

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130
