"""Reports of a run, for people and scripts. They need its folder, but no torch and no device."""
