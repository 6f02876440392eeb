"""Writes a run's winners as a Python package that needs torch, not evotune."""
