"""Visualize a session: a self-contained web page, and a server for following a running session."""
