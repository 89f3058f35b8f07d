"""Workflows: the steps of plain functions as calls of a session."""
