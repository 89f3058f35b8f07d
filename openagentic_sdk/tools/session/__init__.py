"""Tools that act on the session itself: questions, to-dos, subagents, background tasks, tool search."""
