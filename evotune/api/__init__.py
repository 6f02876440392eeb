"""The Python API of `import evotune`: it tunes spaces, opens runs and checks kernels.

`evotune/__init__.py` lists the names; each module of this folder has one part of the API.
"""
