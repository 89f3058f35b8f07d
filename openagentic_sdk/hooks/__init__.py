"""Hooks: what a user's own code may see, change and stop."""
