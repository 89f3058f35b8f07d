"""Tests of the parts that users write, and of what is left when a part is left out."""
