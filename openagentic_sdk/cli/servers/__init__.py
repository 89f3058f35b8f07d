"""Actions of a person on MCP servers: inspect, change, trust and log in."""
