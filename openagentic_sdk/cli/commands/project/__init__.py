"""Commands about the files of a project: its plugins, and the meaning of a name."""
