"""What may have gone wrong in a run: a function for each kind of cause, in a module for each place where it shows."""
