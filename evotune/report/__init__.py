"""What a run found, for people and scripts. Reads a run's folder; never torch, never a device."""
