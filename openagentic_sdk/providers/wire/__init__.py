"""HTTP for requests: connections, time limits, reader threads, and distinguishing the kinds of body."""
