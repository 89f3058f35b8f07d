"""What a person does with MCP servers: look at them, change them, agree to them, log in at them."""
