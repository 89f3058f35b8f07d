"""Connect editors: the Agent Client Protocol, version 1, over stdin and stdout."""
