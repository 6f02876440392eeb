"""Limits of a tensor map that hold for every tensor.

Source: CUDA driver API, "Tensor Map Object Management", `cuTensorMapEncodeTiled`.
"""

SWIZZLES = (0, 32, 64, 128)
L2_PROMOTIONS = (0, 64, 128, 256)
MOST_DIMENSIONS = 5
MOST_BOX = 256
