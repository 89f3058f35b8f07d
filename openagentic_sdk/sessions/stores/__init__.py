"""What the stores share: where one is, and where a log in a database stands."""
