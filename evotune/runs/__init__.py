"""Runs: everything between a command and the packages that do the work."""
