"""The folds of individual features, in addition to the kernel's view."""
