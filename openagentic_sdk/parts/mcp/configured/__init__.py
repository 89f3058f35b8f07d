"""The servers configured in the files of a project, its user and its plugins, and which of them a person agreed to."""
