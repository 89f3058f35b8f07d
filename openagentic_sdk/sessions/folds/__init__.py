"""What events say, as pure folds: usage, summaries, requests, comparisons, exports."""
