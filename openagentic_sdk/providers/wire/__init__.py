"""Requests on their way: connections, limits on time, threads that read, and bodies told apart."""
