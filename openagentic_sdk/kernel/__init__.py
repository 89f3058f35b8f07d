"""The loop (ask the model, run its calls, record every step, stop) and the seams at which parts add features to it."""
