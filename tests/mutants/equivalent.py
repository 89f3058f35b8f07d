"""Mutants of the sample that no test can notice, because they behave as the code does; each with its reason.

Keys are the file, the function, and the lines before and after. A row whose code is gone fails test_mutants.
"""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {}
