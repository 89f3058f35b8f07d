"""The possible causes of a run's failure: a function for each kind, in a module for each place where it shows."""
