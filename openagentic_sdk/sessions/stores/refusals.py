"""Advice for refused statements, chosen by the driver's error code or message."""

from __future__ import annotations

# The advice for these SQLSTATEs of Postgres (https://www.postgresql.org/docs/current/errcodes-appendix.html) and these
# phrases of SQLite and Redis, which have no such codes.
_ADVICE = (
    (
        "tables of this store were removed or changed; restore the database from its backup, or remove the store's other "
        "tables too, to start without its sessions",
        ("42P01", "42703", "42883", "42P07", "42701"),  # a table, column or function is missing; it exists already
        ("no such table", "no such column"),
    ),
    ("free some space on its disk and try again", ("53100",), ("disk is full",)),
    ("free space on, or repair, the disk that it saves to (see its log)", (), ("MISCONF",)),
    ("raise its memory limit, or delete data", ("53200",), ("'maxmemory'",)),
    ("use the primary server, or wait until this one is promoted", ("25006",), ("read only replica",)),
    ("give this user the rights to its tables, or use another user", ("42501",), ("no permissions",)),
    ("let this user write the file and its folder, or copy the store", (), ("readonly database",)),
)


def with_advice(reason: str, code: str | None = None) -> str:
    """The reason for a refusal on one line, and what to do about it, if that is known."""
    reason = " ".join(reason.split()).rstrip(".")
    for advice, codes, words in _ADVICE:
        if code in codes or any(each in reason for each in words):
            return f"{reason}; {advice}"
    return reason
