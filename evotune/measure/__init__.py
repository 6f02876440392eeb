"""The timing protocol: paired, interleaved samples and what they say."""
