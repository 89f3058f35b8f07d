"""The web as tools see it: which addresses may be asked, how, and what text comes back."""
