"""Actions of the command on stored sessions: find, change, check, compare and copy them."""
