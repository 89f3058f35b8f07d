"""The shared parts of stores, and those of databases: schemas, connections, search, writers."""
