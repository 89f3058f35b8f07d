"""The deny and ask rules that the machine can enforce, those that depend on words, and the limit of a decision's work."""
