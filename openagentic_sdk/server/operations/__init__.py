"""A server's output for its operator: a log line per request, metrics, and webhooks."""
