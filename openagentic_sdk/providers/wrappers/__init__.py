"""Wrappers around a provider: retries, a circuit breaker, fallbacks, and all of them together."""
