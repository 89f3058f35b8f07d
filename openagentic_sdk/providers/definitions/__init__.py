"""Tool definitions as each vendor takes them: what it refuses as a table, one transformer, and the way back for calls."""
