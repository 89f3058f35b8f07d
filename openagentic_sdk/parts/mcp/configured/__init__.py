"""Which servers the files of a project, its user and its plugins name, and which of them a person agreed to."""
