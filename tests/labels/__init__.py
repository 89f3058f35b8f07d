"""Decisions that untrusted text must not make."""
