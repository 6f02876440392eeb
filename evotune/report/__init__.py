"""Reports of a run, for people and scripts. They need the run's folder, but neither torch nor a
device."""
