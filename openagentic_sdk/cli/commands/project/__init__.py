"""Commands that look at the files of a project: its plugins, and what a name leads to."""
