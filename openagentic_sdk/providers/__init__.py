"""Models, behind one protocol."""
