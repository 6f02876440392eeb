"""The data that a task passes to a kernel: tensors and plain values in tuples, lists and dicts.

A *template* is such data with a `Leaf` in place of each tensor. It is written as Python into
generated files, so it is made of tuples: `("tuple", (…))`, `("list", (…))`,
`("dict", ((key, …), …))`, `("tensor", number)` and `("value", plain value)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

Template: TypeAlias = "tuple[str, Any]"

AS_IT_IS, COPIED, NEW = "", "copied", "new"
"""How a tensor is passed: itself; a copy, because the kernel writes to it; or a new tensor of
zeros, because it is only written."""


class WrongData(ValueError):
    """Raised for data that have something else in them."""


def template_of(data: Any, tensors: list[torch.Tensor]) -> Template:
    """The data's template. Appends their tensors. Raises WrongData."""
    import torch

    if isinstance(data, torch.Tensor):
        tensors.append(data)
        return "tensor", len(tensors) - 1
    if isinstance(data, tuple):
        return "tuple", tuple(template_of(each, tensors) for each in data)
    if isinstance(data, list):
        return "list", tuple(template_of(each, tensors) for each in data)
    if isinstance(data, dict) and all(isinstance(key, str | int) for key in data):
        return "dict", tuple((key, template_of(each, tensors)) for key, each in data.items())
    if data is None or isinstance(data, bool | int | float | str):
        return "value", data
    expected = "tensors, numbers and texts in tuples, lists and dicts"
    raise WrongData(f"expected {expected}, got a {type(data).__name__}")


def names_of(template: Template, prefix: str) -> list[str]:
    """A name for each tensor: the prefix and the key of its dict, or its number."""
    names: list[str] = []
    _name(template, prefix, names, "")
    return names


def _name(template: Template, prefix: str, names: list[str], key: str) -> None:
    kind, content = template
    if kind == "tensor":
        name = f"{prefix}_{key}" if key.isidentifier() else f"{prefix}_{len(names)}"
        names.append(f"{prefix}_{len(names)}" if name in names else name)
    elif kind == "dict":
        for inner, each in content:
            _name(each, prefix, names, str(inner))
    elif kind in ("tuple", "list"):
        for each in content:
            _name(each, prefix, names, "")


def rebuilt(template: Template, tensors: Sequence[torch.Tensor]) -> Any:
    """The data with these tensors."""
    kind, content = template
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(rebuilt(each, tensors) for each in content)
    if kind == "list":
        return [rebuilt(each, tensors) for each in content]
    if kind == "dict":
        return {key: rebuilt(each, tensors) for key, each in content}
    return content


def passed(tensors: Sequence[torch.Tensor], how: Sequence[str]) -> list[torch.Tensor]:
    """The tensors as a kernel gets them."""
    import torch

    return [
        each if way == AS_IT_IS else (each.clone() if way == COPIED else torch.zeros_like(each))
        for each, way in zip(tensors, how, strict=True)
    ]


def caller(
    function: Callable[[Any], Any], template: Template, how: Sequence[str], names: Sequence[str]
) -> Callable[..., list[torch.Tensor]]:
    """A function of the tensors by name that passes the data to `function`, and returns the tensors
    of what it returns."""

    def call(**given: torch.Tensor) -> list[torch.Tensor]:
        tensors = [given[name] for name in names]
        if any(how):
            tensors = passed(tensors, how)
        found: list[torch.Tensor] = []
        template_of(function(rebuilt(template, tensors)), found)
        return found

    return call
