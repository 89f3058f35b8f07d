"""Read the files of a project folder: memory, commands, agents and settings, and build the system prompt from them."""
