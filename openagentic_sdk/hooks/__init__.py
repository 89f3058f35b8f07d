"""Hooks: a user's own code, which observes, changes and stops what happens at fixed points of a run."""
