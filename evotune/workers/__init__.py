"""Runs trials: the compile pool, the device worker, which can be killed, and the executors."""
