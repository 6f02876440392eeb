"""The path of the Python object behind a value of a space: `CudaKernel.arguments[2]`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

Scalar: TypeAlias = bool | int | float | str | None
Data: TypeAlias = "Scalar | list[Data] | dict[str, Data]"
DataPath: TypeAlias = tuple[str | int, ...]

_NAMED_BY_THE_USER = ("supports", "workspace", "constant_memory")
_RENAMED = {"tensor_map": "tensor"}
_DOMAINS = ("values", "range", "pow2", "choices", "bool")


def object_path(path: DataPath, data: Data) -> str:
    """The path of the object that gave the value at `path` in `data`, the space's plain data."""
    match path:
        case ():
            start, rest = "Space", ""
        case ("problem",) | ("problem", "name"):
            start, rest = "Space.problem", ""
        case ("problem", str(field), *steps):
            start, rest = f"Space.{field}", _subscripts(steps)
        case ("kernels", str(name), *steps):
            start, rest = _kernel(name, data), _attributes(steps)
        case ("parameters", str(name), *steps):
            start, rest = f"Space.parameters[{json.dumps(name)}]", _in_parameter(steps)
        case ("constraints" | "after_compile" as field, int(index), *steps):
            start, rest = f"Space.{field}[{index}]", _attributes(steps)
        case (field, *steps):
            start, rest = f"Space.{field}", _subscripts(steps)
    return start + rest


def class_name(language: str) -> str:
    """`CudaKernel` for cuda."""
    return f"{language.capitalize()}Kernel"


def _kernel(name: str, data: Data) -> str:
    """`CudaKernel` for an only kernel, `Space.kernels[1]` for one of several."""
    kernels = data.get("kernels") if isinstance(data, dict) else None
    if not isinstance(kernels, dict) or name not in kernels:
        return "Space.kernels"
    kernel = kernels[name]
    if len(kernels) > 1 or not isinstance(kernel, dict):
        return f"Space.kernels[{list(kernels).index(name)}]"
    return class_name(str(kernel.get("language", "")))


def _in_parameter(steps: Sequence[str | int]) -> str:
    """The path inside a parameter: `[0]` for the 1 of `ints(1, 4)`. The space file's key of these
    numbers (`range`) is left out."""
    return _subscripts(steps[1:]) if steps and steps[0] in _DOMAINS else _attributes(steps)


def _subscripts(path: Sequence[str | int]) -> str:
    return "".join(f"[{json.dumps(step)}]" for step in path)


def _attributes(path: Sequence[str | int]) -> str:
    """The path inside an object. Keys that the user chose, as in `workspace`, are subscripts."""
    text, before = "", None
    for step in path:
        if isinstance(step, int) or before in _NAMED_BY_THE_USER:
            text += _subscripts([step])
        else:
            text += f".{_RENAMED.get(step, step)}"
        before = step
    return text
