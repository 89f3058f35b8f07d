"""The exit codes of the command."""

OK = 0
FAILED = 1
USAGE = 2
WAITING = 3
INTERRUPTED = 130

# A command stopped by signal n exits with 128 + n, as shells report it.
MEANINGS = {
    OK: "success",
    FAILED: "failed or refused",
    USAGE: "wrong usage",
    WAITING: "waiting (workflows)",
    INTERRUPTED: "interrupted",
}
