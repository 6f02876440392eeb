"""Backends: each folder has one backend and everything that only this backend needs."""
