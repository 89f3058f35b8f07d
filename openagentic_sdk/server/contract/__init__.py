"""The server's contract: every route, its input and output types, and every refusal."""
