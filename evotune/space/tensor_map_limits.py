"""What a tensor map may say, whatever the tensor.

Limits: CUDA driver API, "Tensor Map Object Management", `cuTensorMapEncodeTiled`.
"""

SWIZZLES = (0, 32, 64, 128)
L2_PROMOTIONS = (0, 64, 128, 256)
MOST_DIMENSIONS = 5
MOST_BOX = 256
