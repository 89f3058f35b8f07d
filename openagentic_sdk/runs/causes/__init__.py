"""The possible causes of a run's failure: a function for each kind, in modules by where the failure shows."""
