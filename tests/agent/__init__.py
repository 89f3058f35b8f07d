"""A typed agent, as a program uses it."""
