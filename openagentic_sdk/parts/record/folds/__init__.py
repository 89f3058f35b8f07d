"""What a person or an auditor reads out of a log: costs, spans, explanations, comparisons, exports."""
