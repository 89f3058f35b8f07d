"""What may run, and who said so."""
