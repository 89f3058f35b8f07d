"""Tests of users' own parts, and of what remains when a part is omitted."""
