"""Tool definitions in each vendor's form: a table of the vendors' rules, their application, and the names of properties."""
