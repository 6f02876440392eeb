"""Writes confirmed champions as a Python package that needs PyTorch and not evotune."""
