"""Attacks by strangers: project folders, archives, servers and models that claim more than they were granted."""
