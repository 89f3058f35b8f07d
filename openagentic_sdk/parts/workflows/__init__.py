"""Workflows: plain Python functions whose steps are calls of a session, so that each one is durable."""
