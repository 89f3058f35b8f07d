"""Mutation tests: the code is changed at one place at a time, and the tests of its room must fail."""
