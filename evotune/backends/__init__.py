"""Backends: each folder holds one backend and everything that only this backend needs."""
