"""What the command does with stored sessions: finding, changing, checking, comparing and copying them."""
