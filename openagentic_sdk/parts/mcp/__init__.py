"""A client of the Model Context Protocol that offers servers' tools as our own; a run without servers does not load it."""
