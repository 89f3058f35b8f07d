"""The Redis store's link and scripts."""
