"""Models at the clouds that serve them: other addresses, signatures and framings around the same protocols."""
