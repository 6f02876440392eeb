"""The correctness gate: the checks that a candidate must pass before its time means anything."""
