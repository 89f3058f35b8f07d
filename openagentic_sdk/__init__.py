"""Run an LLM agent whose every step is a durable event."""
