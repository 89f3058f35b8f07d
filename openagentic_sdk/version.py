"""The version of the distribution, in a file of its own so that building reads it without importing the package."""

__version__ = "0.1.0"
