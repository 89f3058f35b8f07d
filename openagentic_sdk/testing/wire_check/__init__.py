"""Check recorded exchanges with model endpoints: what our readers make of them, wherever they are cut."""
