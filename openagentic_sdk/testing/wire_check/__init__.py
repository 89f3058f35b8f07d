"""Check our readers against recorded exchanges with model endpoints, complete and cut at every event."""
