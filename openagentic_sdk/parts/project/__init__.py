"""What a project folder says: memory, commands, agents, settings, and the system prompt made of it."""
