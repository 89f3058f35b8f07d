"""Programs for workers of other schedulers: the recipes of docs/schedulers.md with short intervals and a paying agent."""
