"""HTTP for requests: connections, time limits, reader threads and body readers."""
