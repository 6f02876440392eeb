"""The timing protocol: paired and interleaved samples, and their statistics."""
