"""The YAML text of space.yaml."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evotune.trial import Value

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+*-]*( [+*/<>=%-]+ [A-Za-z0-9_.]+)*")
_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


@dataclass(frozen=True)
class SpaceText:
    """The content of space.yaml; arguments, grid, block and constraints are YAML texts already."""

    name: str
    script: str
    dtype: str
    shape: Mapping[str, int]
    kernel: str
    source: str
    define: Sequence[str]
    options: Sequence[str]
    arguments: Sequence[str]
    constant_memory: Mapping[str, str]
    grid: Sequence[str]
    block: Sequence[str]
    shared_bytes: str
    parameters: Mapping[str, Sequence[Value]]
    constraints: Sequence[str]

    def text(self) -> str:
        launch = f"grid: {_row(self.grid)}, block: {_row(self.block)}"
        if self.shared_bytes:
            launch += f", shared_bytes: {quoted(self.shared_bytes)}"
        lines = [
            "# yaml-language-server: $schema=space.schema.json",
            f"# From {self.script}.",
            f"name: {quoted(self.name)}",
            "root: .",
            "problem:",
            "  name: problem.py:Problem",
            f"  dtype: {self.dtype}",
            f"  shapes: [{_mapping(self.shape)}]",
            "kernels:",
            f"  {self.kernel}:",
            f"    source: {quoted(self.source)}",
            f"    entry: {self.kernel}",
        ]
        if self.define:
            lines.append(f"    define: {_row(self.define)}  # compiled in: each value is a binary")
        if self.options:
            lines.append(f"    options: {_row(self.options)}")
        if self.constant_memory:
            lines.append(f"    constant_memory: {_mapping(self.constant_memory)}")
        lines += [
            f"    arguments: [{', '.join(self.arguments)}]",
            "    launches:",
            f"      - {{{launch}}}",
            "parameters:",
            *(f"  {name}: {_domain(values)}" for name, values in self.parameters.items()),
        ]
        if self.constraints:
            lines += ["constraints:", *(f"  - {quoted(text)}" for text in self.constraints)]
        lines += ["baseline: torch:best", "budget: {trials: 200}"]
        return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A YAML scalar, in quotes where it might be read as something else."""
    plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
    return text if plain or text.isdigit() else json.dumps(text)


def _row(items: Sequence[str]) -> str:
    return f"[{', '.join(map(quoted, items))}]"


def _mapping(items: Mapping[str, object]) -> str:
    return f"{{{', '.join(f'{name}: {value}' for name, value in items.items())}}}"


def _domain(values: Sequence[Value]) -> str:
    """`pow2` and `range` where the values are just that, in this order."""
    numbers = [value for value in values if type(value) is int]
    if len(numbers) == len(values) >= 3:
        first, second, last = numbers[0], numbers[1], numbers[-1]
        doubled = all(b == 2 * a for a, b in itertools.pairwise(numbers))
        if first >= 1 and first & (first - 1) == 0 and doubled:
            return f"{{pow2: [{first}, {last}]}}"
        step = second - first
        if step >= 1 and numbers == list(range(first, last + 1, step)):
            return f"{{range: [{first}, {last}{'' if step == 1 else f', {step}'}]}}"
    return f"[{', '.join(map(_value, values))}]"


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str) and value.lower() in _WORDS else str(value)
