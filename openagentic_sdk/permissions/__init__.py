"""Permissions: what may run, and who decided so."""
