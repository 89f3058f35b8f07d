"""Folds over a log for people and auditors: costs, spans, explanations, comparisons, exports."""
