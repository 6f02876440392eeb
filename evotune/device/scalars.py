"""Scalar kernel arguments as C values, for ctypes and for the CUDA driver alike."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from evotune.device.launch import Argument
from evotune.device.session import LaunchFailure

_TYPES: Mapping[str, type[Any]] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


def c_value(argument: Argument) -> Any:
    """The argument as a C value; LaunchFailure where ctypes would silently drop upper bits."""
    converted = _TYPES[argument.type](argument.value)
    if argument.type.startswith("int") and converted.value != argument.value:
        raise LaunchFailure(f"the argument {argument.value} does not fit {argument.type}")
    return converted
