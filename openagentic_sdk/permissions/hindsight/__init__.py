"""The effect of other rules on the calls in existing logs, and the rules that would have avoided questions."""
