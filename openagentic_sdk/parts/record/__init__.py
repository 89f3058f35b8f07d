"""What the log of a session proves to others: a chain that can be signed, and that stays whole when fields are erased."""
