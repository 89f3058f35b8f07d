"""The log as files: lines, locks, reading, checking, and the files beside it."""
