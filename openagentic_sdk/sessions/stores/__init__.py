"""What the stores share, and the parts of those in databases: schemas, connections, searching, writers."""
