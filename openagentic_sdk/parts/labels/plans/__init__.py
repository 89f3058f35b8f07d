"""Plans made before reading: code that the model writes from the prompt and the tools' signatures alone."""
