"""The version of evotune that runs, stores and pages say. Imports nothing: see `evotune`."""

__version__ = "0.1.0"
