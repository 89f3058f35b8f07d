"""Editors connect: the Agent Client Protocol, version 1, over stdin and stdout."""
