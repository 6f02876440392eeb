"""Reports of a run, for people and for scripts. They need only the run's folder, neither torch nor
a device."""
