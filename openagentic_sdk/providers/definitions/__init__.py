"""Tool definitions in each vendor's form: a table of their rules, one transformer, and the mapping back for calls."""
