"""A typed agent, as programs use it."""
