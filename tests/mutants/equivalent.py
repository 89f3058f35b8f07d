"""Mutants of the sample that no test can notice, because they behave like the code, each with its reason.

Keys are the file, the function, and the lines before and after. A row whose code no longer exists fails test_mutants.
"""

from __future__ import annotations

_NO_FLAG = "BINARY and O_RDONLY are 0 on POSIX systems, so that & and | give the same"

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    (
        "sessions/log/summary_beside.py",
        "SummaryBeside._caught_up",
        "fd = self._disk.open(str(path_in(self._folder, LOG_NAME)), os.O_RDONLY | BINARY | NO_FOLLOW)",
        "fd = self._disk.open(str(path_in(self._folder, LOG_NAME)), os.O_RDONLY & BINARY | NO_FOLLOW)",
    ): _NO_FLAG,
    (
        "permissions/command_deny.py",
        "forbidding_command_rule",
        "return first_forbidding_path(book, subject, subject.possible_accesses) if book.paths else None",
        "return first_forbidding_path(book, subject, subject.possible_accesses) if (book.paths) or True else None",
    ): "a book without rules about paths forbids none: the condition only saves working the paths out",
    (
        "permissions/hold/reach.py",
        "_unknown_words",
        'elif UNKNOWN not in word and "$" in (subject.command or ""):',
        'elif UNKNOWN not in word and "$" in (subject.command or "XXXX"):',
    ): "only calls with a command come here, and the text for one without has no $ either",
    (
        "permissions/guess.py",
        "loose_commands",
        'values.setdefault("".join(row[1:2]), []).extend(row[3:])',
        'values.setdefault("XXXX".join(row[1:2]), []).extend(row[3:])',
    ): "at most one word is joined: the text between two of them is never used",
    (
        "permissions/program_tables.py",
        "Options.long_lines",
        'return "".join(f"\\n{name}" for name in self.long)',
        'return "XXXX".join(f"\\n{name}" for name in self.long)',
    ): "only beginnings of names are looked for, each behind its own line end, and nobody reads what ends a name",
    (
        "permissions/decide.py",
        "decide",
        'return Verdict("ask", subject.problem, "path")',
        'return Verdict("ask", subject.problem, "XXpathXX")',
    ): "the category of a question only keeps rules from being offered, and for a call with a problem there are none",
    (
        "permissions/compound.py",
        "_CompoundReader.printed",
        'return "0"',
        'return "XX0XX"',
    ): "the stand-in becomes part of a word of an echo, which is judged by neither its length nor its letters",
}
