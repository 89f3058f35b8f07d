"""Mutation tests: one place of the code is changed at a time, and the tests of its room must notice."""
