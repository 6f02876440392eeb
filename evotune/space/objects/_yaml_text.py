"""Plain data as the text of a space file: the same text for the same data, on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from evotune.errors import SpaceError
from evotune.space.objects._domains import Constraint, Domain
from evotune.space.objects._kernel_objects import Argument, Kernel, Launch, TensorMap, Workspace
from evotune.space.reading.object_path import Data, class_name
from evotune.space.reading.yaml_source import Position, plain_value

# --- Makes Python objects of a space file's data --------------------------------------------------

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


_WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """Writes lists and mappings of scalars on one line, and quotes text that YAML 1.2 would not
    read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _reads_as_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _reads_as_text(text: str) -> bool:
    try:
        return isinstance(plain_value(text, Position()), str)
    except SpaceError:
        return False


_Dumper.add_representer(str, _text)


def yaml_text(data: Mapping[str, Data]) -> str:
    """A document that `evotune.space.reading` reads as `data`."""
    text: str = yaml.dump(
        dict(data),
        Dumper=_Dumper,
        default_flow_style=None,
        sort_keys=False,
        allow_unicode=True,
        width=_WIDTH,
    )
    return text
