"""Runs beyond one prompt: in the background, and from a copy of a session."""
