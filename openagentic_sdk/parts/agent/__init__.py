"""Runs of a typed agent: its dependencies, guardrails, validators and handoffs, and the messages that it is given."""
