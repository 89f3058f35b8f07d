"""Files for tools: permitted paths, encodings, and text in the form that a model reads."""
