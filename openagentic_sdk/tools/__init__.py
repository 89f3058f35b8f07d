"""What a model can do."""
