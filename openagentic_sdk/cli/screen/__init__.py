"""What the command shows and asks: events as lines, questions, a countdown, the turn of a conversation."""
