"""Runs on many hosts: a queue beside the sessions, in the database that holds them."""
