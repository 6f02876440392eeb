"""`init --from-kernel-tuner`: a Kernel Tuner script is read, never run, and written as a space."""
