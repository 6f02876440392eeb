"""Makes Python objects of a space file's data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evotune.space.objects.domains import Constraint, Domain
from evotune.space.objects.kernel_objects import (
    Argument,
    Kernel,
    Launch,
    TensorMap,
    Workspace,
)
from evotune.space.reading.object_path import class_name

_OPTIONS = ("when", "otherwise", "default")


def kernel_from_data(name: str, language: str, data: Mapping[str, Any]) -> Kernel:
    """The kernel `name` as an object. `data` was read and checked before."""
    given = {key: value for key, value in data.items() if key != "language"}
    if "arguments" in given:
        given["arguments"] = [_argument(value) for value in given["arguments"]]
    if "launches" in given:
        given["launches"] = [Launch(**launch) for launch in given["launches"]]
    if "workspace" in given:
        buffers = given["workspace"].items()
        given["workspace"] = {buffer: Workspace(**fields) for buffer, fields in buffers}
    return _kernel_class(language)(name=name, **given)


def _kernel_class(language: str) -> type[Kernel]:
    for kind in Kernel.__subclasses__():
        if kind.language == language:
            return kind
    return type(class_name(language), (Kernel,), {"language": language})


def domain_from_data(data: Any) -> Any:
    """A parameter's `Domain`; a plain list of values stays a list."""
    if not isinstance(data, dict):
        return data
    ((form, given),) = ((key, value) for key, value in data.items() if key not in _OPTIONS)
    return Domain(form, given, **{key: data[key] for key in _OPTIONS if key in data})


def condition_from_data(data: Any) -> Any:
    """A `Constraint`; an expression without a reason stays as it is."""
    return Constraint(**data) if isinstance(data, dict) else data


def _argument(value: Any) -> str | Argument | TensorMap:
    if isinstance(value, str):
        return value
    if "tensor_map" in value:
        return TensorMap(
            value["tensor_map"], **{k: v for k, v in value.items() if k != "tensor_map"}
        )
    return Argument(**value)
