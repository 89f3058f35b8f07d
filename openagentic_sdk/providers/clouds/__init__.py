"""Models in the clouds that serve them: other addresses, signatures and framing around the same protocols."""
