"""From a space file's data to the objects that say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evotune.space.objects.domains import Constraint, Domain
from evotune.space.objects.kernel_objects import (
    Argument,
    CppKernel,
    CudaKernel,
    Kernel,
    Launch,
    TensorMap,
    TritonKernel,
    Workspace,
)

_KERNELS = {kind.language: kind for kind in (CppKernel, CudaKernel, TritonKernel)}
_OPTIONS = ("when", "otherwise", "default")


def kernel_from_data(name: str, language: str, data: Mapping[str, Any]) -> Kernel:
    """The kernel `name`, whose data was read and checked."""
    given = {key: value for key, value in data.items() if key != "language"}
    if "arguments" in given:
        given["arguments"] = [_argument(value) for value in given["arguments"]]
    if "launches" in given:
        given["launches"] = [Launch(**launch) for launch in given["launches"]]
    if "workspace" in given:
        buffers = given["workspace"].items()
        given["workspace"] = {buffer: Workspace(**fields) for buffer, fields in buffers}
    return _KERNELS[language](name=name, **given)


def domain_from_data(data: Any) -> Any:
    """A list of values stays what it is."""
    if not isinstance(data, dict):
        return data
    ((form, given),) = ((key, value) for key, value in data.items() if key not in _OPTIONS)
    return Domain(form, given, **{key: data[key] for key in _OPTIONS if key in data})


def condition_from_data(data: Any) -> Any:
    """An expression without a reason stays what it is."""
    return Constraint(**data) if isinstance(data, dict) else data


def _argument(value: Any) -> str | Argument | TensorMap:
    if isinstance(value, str):
        return value
    if "tensor_map" in value:
        return TensorMap(
            value["tensor_map"], **{k: v for k, v in value.items() if k != "tensor_map"}
        )
    return Argument(**value)
