"""The version of evotune, as runs, stores and pages record it. Imports nothing: see `evotune`."""

__version__ = "0.1.0"
