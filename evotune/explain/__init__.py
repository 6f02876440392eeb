"""Explains a run's champion: its limiter, the worth of its choices, suggestions."""
