"""Permissions: which calls may run, and who decided."""
