"""Parameter types. Each owns how its values are drawn, mutated, crossed and encoded.

A strategy never asks what type a parameter has; it calls these methods. Every domain is
finite. Randomness comes from the generator that is passed in, never from a global one.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from evotune.trial import Value


class Parameter(ABC):
    """A named finite domain. `values` is a sequence with O(1) `len` and indexing.

    `outside`: the value of the inactive parameter if it is not in the domain; else empty.
    """

    kind: ClassVar[str]
    ordered: ClassVar[bool] = False  # whether the distance between indices means something
    outside: tuple[Value, ...] = ()

    def __init__(self, name: str, values: Sequence[Value]) -> None:
        if len(values) == 0:
            raise ValueError(f"parameter {name} has no values")
        self.name = name
        self.values = values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.values!r})"

    @property
    def cardinality(self) -> int:
        return len(self.values)

    def index(self, value: Value) -> int:
        """Position of `value` in the domain; ValueError when it is not in it."""
        return self.values.index(value)

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def sample(self, rng: random.Random) -> Value:
        return self.values[rng.randrange(len(self.values))]

    @abstractmethod
    def adjacent(self, value: Value) -> tuple[Value, ...]:
        """The values one step away, which a local search tries first."""

    @abstractmethod
    def mutate(self, value: Value, rng: random.Random) -> Value:
        """Another value of the domain (the same one only when there is no other)."""

    def cross(self, first: Value, second: Value, rng: random.Random) -> Value:
        """A child's value from two parents'."""
        return first if rng.random() < 0.5 else second

    @abstractmethod
    def encode(self, value: Value) -> tuple[float, ...]:
        """Coordinates in [0, 1] for models and distances; every value has equally many."""


class OrderedParameter(Parameter):
    """Values in a meaningful order: the neighbours are the next and the previous one."""

    kind = "list"
    ordered = True

    def adjacent(self, value: Value) -> tuple[Value, ...]:
        i = self.index(value)
        return tuple(self.values[j] for j in (i - 1, i + 1) if 0 <= j < len(self.values))

    def mutate(self, value: Value, rng: random.Random) -> Value:
        """Mostly a step up or down, sometimes a jump anywhere else."""
        count = len(self.values)
        if count == 1:
            return value
        i = self.index(value)
        if rng.random() < 0.6:
            return rng.choice(self.adjacent(value))
        j = rng.randrange(count - 1)
        return self.values[j + (j >= i)]

    def encode(self, value: Value) -> tuple[float, ...]:
        count = len(self.values)
        return (self.index(value) / (count - 1) if count > 1 else 0.0,)


class IntegerRange(OrderedParameter):
    """`{range: [low, high, step]}`, both ends included."""

    kind = "range"

    def __init__(self, name: str, low: int, high: int, step: int = 1) -> None:
        super().__init__(name, range(low, high + 1, step))


class PowerOfTwo(OrderedParameter):
    """`{pow2: [low, high]}`, both ends included and powers of two."""

    kind = "pow2"

    def __init__(self, name: str, low: int, high: int) -> None:
        exponents = range(int(math.log2(low)), int(math.log2(high)) + 1)
        super().__init__(name, tuple(1 << e for e in exponents))


class Categorical(Parameter):
    """`{choices: [...]}`: values without an order; every other value is a neighbour."""

    kind = "choices"

    def adjacent(self, value: Value) -> tuple[Value, ...]:
        return tuple(other for other in self.values if other != value)

    def mutate(self, value: Value, rng: random.Random) -> Value:
        others = self.adjacent(value)
        return rng.choice(others) if others else value

    def encode(self, value: Value) -> tuple[float, ...]:
        return tuple(float(other == value) for other in self.values)


class Boolean(Categorical):
    """`[false, true]`: one coordinate is enough."""

    kind = "bool"

    def __init__(self, name: str, values: Sequence[Value] = (False, True)) -> None:
        super().__init__(name, values)

    def encode(self, value: Value) -> tuple[float, ...]:
        return (float(bool(value)),)
