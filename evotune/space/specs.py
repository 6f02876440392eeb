"""The content of a space file, as frozen values with the positions of its expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from evotune.trial import Value

if TYPE_CHECKING:  # a worker that compiles needs none of them, and they import NumPy
    from evotune.space.language import Expression
    from evotune.space.reading.yaml_source import DataPath, Position
    from evotune.space.search_space import Parameter

_LEAST_ARCH = re.compile(r"arch\s*>=\s*(\d+)")


class GivenCase(msgspec.Struct, frozen=True):
    """A case that a user gave in place of a space's cases. `count` is its weight."""

    shape: Mapping[str, Value]
    variant: Mapping[str, Value]
    count: float = 1


@dataclass(frozen=True, slots=True)
class ProblemSpec:
    """The problem that a space solves.

    - `shapes`, `variants`, `held_out`: symbol -> value; the problem gives symbols their meaning.
    - `positions`: the position of each key, shape, variant and symbol.
    - `cases`: cases from the user, which replace shapes, variants and held-out shapes.
    """

    name: str
    dtype: str
    shapes: tuple[Mapping[str, Value], ...]
    variants: tuple[Mapping[str, Value], ...]
    held_out: tuple[Mapping[str, Value], ...]
    position: Position
    positions: Mapping[DataPath, Position]
    cases: tuple[GivenCase, ...] = ()

    def at(self, *path: str | int) -> Position:
        """The position of `path`, such as `("shapes", 0, "rows")`, or of the longest beginning of
        it that is in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.positions:
                return self.positions[path[:length]]
        return self.position

    def environments(self, *, held_out: bool = False) -> tuple[dict[str, Value], ...]:
        """The symbols of each shape x variant, shapes first, with `dtype`."""
        shapes = self.held_out if held_out else self.shapes
        return tuple(
            {**shape, **variant, "dtype": self.dtype}
            for shape in shapes
            for variant in self.variants
        )


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """A TMA descriptor of a tensor. `box` has the outermost dimension first. A swizzle or promotion
    of 0 bytes means none."""

    box: tuple[Expression, ...]
    box_position: Position
    swizzle_bytes: Expression
    l2_promotion_bytes: Expression


@dataclass(frozen=True, slots=True)
class ArgumentSpec:
    """One kernel argument: the buffer or symbol `name`, the `tensor_map` of the tensor `name`, or
    a typed `value`. With `when`, only in cases in which that holds; such arguments come last."""

    position: Position
    name: str | None = None
    value: Expression | None = None
    type: str | None = None
    tensor_map: TensorMapSpec | None = None
    when: Expression | None = None

    def expressions(self) -> Iterator[Expression]:
        if self.value is not None:
            yield self.value
        if self.tensor_map is not None:
            yield from self.tensor_map.box
            yield self.tensor_map.swizzle_bytes
            yield self.tensor_map.l2_promotion_bytes


@dataclass(frozen=True, slots=True)
class WorkspaceSpec:
    """A scratch buffer; `init` is `poison` or `zero_once`."""

    name: str
    size_bytes: Expression
    init: str


@dataclass(frozen=True, slots=True)
class ConstantMemorySpec:
    """A copy of `tensor` into the `__constant__` variable `symbol`."""

    symbol: str
    tensor: str
    position: Position


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A launch of the function `entry`. If `when` is given, the launch runs only in cases for which
    it holds."""

    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared_bytes: Expression
    entry: str
    when: Expression | None


@dataclass(frozen=True, slots=True)
class SupportSpec:
    """The values of one symbol that a kernel supports: a list, or a comparison."""

    symbol: str
    values: tuple[Value, ...] | None
    condition: Expression | None

    def holds(self, value: Value) -> bool:
        if self.values is not None:
            # 30 is 30.0, but true is not 1.
            truth = isinstance(value, bool)
            return any(truth == isinstance(known, bool) and value == known for known in self.values)
        assert self.condition is not None
        return bool(self.condition.evaluate({self.symbol: value}))

    def __str__(self) -> str:
        if self.values is not None:
            if self.symbol == "arch" and len(self.values) == 1:
                return f"sm_{self.values[0]}"
            prefix = "sm_" if self.symbol == "arch" else ""
            return f"{self.symbol} in ({', '.join(f'{prefix}{value}' for value in self.values)})"
        assert self.condition is not None
        least = _LEAST_ARCH.fullmatch(self.condition.text)
        return f"sm_{least[1]} or later" if least else str(self.condition.text)

    def found(self, value: Value) -> str:
        return f"sm_{value}" if self.symbol == "arch" else f"{self.symbol} = {value}"


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel's source, entry point and launches. `language`: a language of some backend.
    `alternative`: the name of a space for devices that the kernel does not support; "" for none."""

    name: str
    source: Path
    entry: str
    language: str
    supports: tuple[SupportSpec, ...]
    define: tuple[str, ...]
    specialise: tuple[str, ...]
    compiled_in_positions: tuple[Position, ...]
    arguments: tuple[ArgumentSpec, ...]
    workspace: tuple[WorkspaceSpec, ...]
    constant_memory: tuple[ConstantMemorySpec, ...]
    options: tuple[str, ...]
    launches: tuple[LaunchSpec, ...]
    deterministic: bool
    alternative: str
    position: Position

    @property
    def compiled_in(self) -> tuple[str, ...]:
        """The names in `define`, then the names in `specialise`. `compiled_in_positions` has their
        positions."""
        return (*self.define, *self.specialise)

    def expressions(self) -> Iterator[Expression]:
        """Every expression that a launch of this kernel evaluates."""
        for launch in self.launches:
            yield from (*launch.grid, *launch.block, launch.shared_bytes)
        yield from (buffer.size_bytes for buffer in self.workspace)
        for argument in self.arguments:
            yield from argument.expressions()

    def unsupported(self, symbols: Mapping[str, Value]) -> str | None:
        """Why the kernel does not support these symbols (of a shape, or `arch`), in words; None if
        it does."""
        for support in self.supports:
            if support.symbol in symbols and not support.holds(symbols[support.symbol]):
                found = support.found(symbols[support.symbol])
                return f"kernel {self.name} needs {support}, found {found}"
        return None


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter and, if it is conditional, its condition and its value while inactive."""

    parameter: Parameter
    when: Expression | None
    otherwise: Value
    default: Value | None
    position: Position

    @property
    def name(self) -> str:
        return self.parameter.name


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    expression: Expression
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.expression.text} ({self.reason})" if self.reason else self.expression.text


@dataclass(frozen=True, slots=True)
class TimeoutsSpec:
    """The seconds after which a compiler run and a trial on the device are killed."""

    compile_s: float
    trial_s: float


@dataclass(frozen=True, slots=True)
class RecordedSpec:
    """A recorded space: the file next to the space file or under its root."""

    file: Path
    delay_ms: float
    position: Position


# Compiler options with a parameter's value in them: -O{LEVEL}, -f{MATH}.

_PLACE = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")


def parameters_in(option: str) -> list[str]:
    """The parameters whose names stand in braces in a compiler option."""
    return _PLACE.findall(option)


def filled(option: str, values: Mapping[str, Value]) -> str:
    """The compiler option with its parameters replaced by these values. `no_fast_math` becomes
    no-fast-math, and a boolean becomes true or false."""
    return _PLACE.sub(lambda place: _text(values[place[1]]), option)


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value.replace("_", "-") if isinstance(value, str) else str(value)


# Limits that hold for every tensor map.

SWIZZLES = (0, 32, 64, 128)
L2_PROMOTIONS = (0, 64, 128, 256)
MOST_DIMENSIONS = 5
MOST_BOX = 256
