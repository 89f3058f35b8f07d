"""What each feature folds from a log, beside the kernel's view."""
