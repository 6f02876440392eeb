"""The modules that every exported package carries, copied as they are.

They import torch and the standard library only. Everything that differs between packages is in
`dispatch.json` and `certificate.json`. `_package.py` joins the modules.
"""
