"""Spaces made of Python objects: `Space`, its kernels and the values of its parameters.

They are converted to the data of a space file, and checked in the same way.
"""

from evotune.space.objects.kernel_objects import (
    Argument,
    Constraint,
    CppKernel,
    CudaKernel,
    Domain,
    Kernel,
    Launch,
    PythonCallable,
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
    "PythonCallable",
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
