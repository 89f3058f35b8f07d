"""Commands about model endpoints."""
