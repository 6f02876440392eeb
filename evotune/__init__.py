"""evotune: an evolutionary kernel autotuner that checks before it measures."""

__version__ = "0.1.0"
