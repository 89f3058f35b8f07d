"""The Postgres store's link, tables and statements."""
