"""Logging in at MCP servers: OAuth 2.1 as the specification of 2026-07-28 has it, and what is kept of a login."""
