"""Inputs of kernels that are launched under tools, in processes without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evotune.problems.problem import FLOAT8, INTEGERS


def normal_values(count: int, dtype: str) -> npt.NDArray[Any]:
    """`count` seeded N(0, 1) values; bfloat16, which NumPy lacks, as 16 bits, cut off. Integers are
    small; floats of 8 bits are any of 0.03 to 8."""
    generator = np.random.default_rng(count)
    if dtype in FLOAT8:
        first, end = (0x10, 0x51) if dtype == "float8_e4m3" else (0x28, 0x49)
        return generator.integers(first, end, count, dtype=np.uint8)
    if dtype in INTEGERS:
        return generator.integers(0, 8, count).astype(dtype)
    values = generator.standard_normal(count, dtype=np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)
