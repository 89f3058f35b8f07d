"""Logins at MCP servers: OAuth 2.1 as in the specification of 2026-07-28, and the storage of logins."""
