"""What `import evotune` offers: spaces are tuned, runs are opened, kernels are checked.

`evotune/__init__.py` names it all; each module here does one of these things.
"""
