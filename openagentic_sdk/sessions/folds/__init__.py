"""Pure folds over events: usage, summaries, requests, comparisons, exports."""
