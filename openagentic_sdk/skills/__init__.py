"""Where skills live, and how their files are read."""
