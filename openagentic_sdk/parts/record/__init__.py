"""Make a session's log verifiable by others: a hash chain that can be signed and stays intact when fields are erased."""
