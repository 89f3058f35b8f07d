"""What a server reports besides its responses: log lines, metrics, and webhooks."""
