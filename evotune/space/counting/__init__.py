"""The set of valid configurations: exact counts and samples without the Cartesian product."""
