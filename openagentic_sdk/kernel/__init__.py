"""The loop: ask the model, run its tools, record every step, stop."""
