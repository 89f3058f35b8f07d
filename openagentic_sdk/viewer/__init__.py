"""A session as a picture: one page that needs nothing but a browser, and a server that follows a running session."""
