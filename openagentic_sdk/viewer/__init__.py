"""Render self-contained web pages: of a session, of a list of sessions, of a signed record, and of an eval."""
