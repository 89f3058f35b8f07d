"""Apply the `.claude` files of a project in a run: its prompt, skills, hooks, names and text commands."""
