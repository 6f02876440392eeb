"""Running trials: the compile pool, the killable device worker, and the executors."""
