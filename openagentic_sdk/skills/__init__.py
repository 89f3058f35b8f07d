"""Skills: where they are found, and how their files are read."""
