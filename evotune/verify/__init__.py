"""The correctness gate: what must hold before a candidate's time means anything."""
