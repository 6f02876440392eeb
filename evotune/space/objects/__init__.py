"""Spaces made of Python objects: `Space`, its kernels and the values of its parameters.

They become the very data that a space file holds, and are checked in the same way.
"""

from evotune.space.objects.kernel_objects import (
    Argument,
    Constraint,
    CppKernel,
    CudaKernel,
    Domain,
    Kernel,
    Launch,
    TensorMap,
    TritonKernel,
    Workspace,
    booleans,
    choices,
    ints,
    powers_of_two,
    values,
)
from evotune.space.objects.space_object import Space

__all__ = [
    "Argument",
    "Constraint",
    "CppKernel",
    "CudaKernel",
    "Domain",
    "Kernel",
    "Launch",
    "Space",
    "TensorMap",
    "TritonKernel",
    "Workspace",
    "booleans",
    "choices",
    "ints",
    "powers_of_two",
    "values",
]
