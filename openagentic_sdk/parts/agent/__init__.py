"""Runs of a typed agent: its dependencies, guardrails, validators and handoffs, and its message history."""
