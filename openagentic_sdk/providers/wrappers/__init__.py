"""Providers around a provider: retries, a breaker, fallbacks, a guard."""
