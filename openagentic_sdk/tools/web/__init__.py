"""Web access for tools: the addresses that may be requested, the exchanges, and the text of responses."""
