"""Runs beyond a single prompt: in the background, from a copy of a session, or replayed; and explanations of runs."""
