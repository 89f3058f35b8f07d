"""Stores of events, and pure folds over events."""
