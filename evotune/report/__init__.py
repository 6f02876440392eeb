"""Reports of a run, for people and scripts. Reads a run's folder; never torch, never a device."""
