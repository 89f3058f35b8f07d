"""A client of the Model Context Protocol that offers servers' tools as our own; loaded only by runs that have servers."""
