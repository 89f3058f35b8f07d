"""What workers of other schedulers run in tests: the recipes of docs/schedulers.md with short times and a paying agent."""
