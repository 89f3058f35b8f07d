"""What an operator sees of a server: a line for each request, figures, and messages to other services."""
