"""What other rules would have done with the calls that stand in logs, and which rules would have saved questions."""
