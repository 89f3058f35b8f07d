"""Which forbidding rules the machine can enforce, which depend on words, and the limit of a decision's work."""
