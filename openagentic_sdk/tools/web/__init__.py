"""The web for tools: which addresses may be requested, how, and the text of the response."""
