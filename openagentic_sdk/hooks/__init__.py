"""Hooks: the points of a run that a user's own code may observe, change and stop."""
