"""Why a run's champion is fast, what holds it, and what to try next: `evotune explain`."""
