"""The version of the distribution, alone in a file so that building reads it without importing the package."""

__version__ = "0.1.0"
