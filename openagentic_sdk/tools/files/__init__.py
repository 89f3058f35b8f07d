"""Files for tools: path resolution, opening without races, and text as a model reads it."""
