"""Pure folds over events: a session's view, requests, usage, spending, summary, search hits and compaction."""
