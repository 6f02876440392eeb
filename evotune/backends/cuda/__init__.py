"""The CUDA backend. The compile side (`compiler`, `profiles`, `occupancy`) needs no GPU."""
