"""What a user's own code may see, change and stop."""
