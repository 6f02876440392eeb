"""`init --from-kernel-tuner`: reads a Kernel Tuner script, never runs it, and writes a space."""
