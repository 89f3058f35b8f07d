"""Logins to MCP servers: OAuth 2.1 as in MCP's specification of 2026-07-28, and the storage of logins."""
