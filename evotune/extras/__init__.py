"""Optional parts. Each folder is one, and evotune works without it."""
