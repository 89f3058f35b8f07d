"""The SQLite store's tables and statements."""
