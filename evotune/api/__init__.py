"""The Python API of `import evotune`: it tunes spaces, opens runs and checks kernels.

`evotune/__init__.py` lists its names; each module here has one part of it.
"""
