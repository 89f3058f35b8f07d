"""The log as files: lines, locks, reading, checking and what is kept beside them."""
