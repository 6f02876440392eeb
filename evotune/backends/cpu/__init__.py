"""The CPU backend: C++ kernels."""
