"""Finds few kernels for many cases: searches for cases that differ, a matrix of measurements from
which kernels are chosen, and a rule that picks one for each case."""
