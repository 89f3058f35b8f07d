"""Files as tools see them: where a path leads, opened without races, and their text as a model reads it."""
