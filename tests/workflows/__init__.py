"""Workflows: plain functions as steps, recorded as calls of a session."""
