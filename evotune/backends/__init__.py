"""Backends: each folder is one, and holds all that is peculiar to it."""
