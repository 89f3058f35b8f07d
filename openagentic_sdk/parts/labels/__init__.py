"""Restrict what untrusted text may decide: labels on results, and rules about the calls that they could lead to."""
