"""The timing protocol: paired, interleaved samples and their statistics."""
