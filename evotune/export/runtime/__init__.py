"""The modules that every exported package carries, copied as they are.

They import torch and the standard library only. All that differs from package to package stands in
its `dispatch.json` and `certificate.json`. `_package.py` joins the modules.
"""
