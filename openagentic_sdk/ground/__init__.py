"""Small utilities that every room may use and that depend on no room."""
