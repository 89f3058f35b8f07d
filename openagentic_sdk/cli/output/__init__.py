"""Output for people and programs: text and colours, a run's events, questions, and the outcome of a turn."""
