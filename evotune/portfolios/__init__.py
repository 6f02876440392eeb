"""Few kernels for many cases: searched where cases differ, chosen by a matrix, served by a rule."""
