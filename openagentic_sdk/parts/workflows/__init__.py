"""Workflows: plain Python functions whose steps are calls in a session, and therefore durable."""
