"""`SearchSpace`: the interface through which a search uses a space, from a file or from a
recording.

Each type of parameter has its own way to draw, mutate, cross and encode values. `ExplicitSpace` is
a space that is given by the list of its valid configurations, such as a recording.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, Protocol

import numpy as np

from evotune.errors import SpaceError
from evotune.trial import Configuration, Value


@dataclass(frozen=True, slots=True)
class SpaceSize:
    """The size of a space.

    - `cartesian`: the number of points before constraints.
    - `valid`: the number of distinct configurations that meet the constraints.
    - `exact`: False if `valid` is an estimate from samples.
    """

    cartesian: int
    valid: int
    exact: bool


class SearchSpace(Protocol):
    """A finite set of valid configurations. Inactive genes have their canonical value.

    Every method is a pure function of its arguments; all randomness comes from the caller's `rng`.
    The returned configurations are valid and canonical, and list the parameters in the space's
    order.
    """

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...

    def size(self) -> SpaceSize: ...

    def is_valid(self, configuration: Mapping[str, Value]) -> bool:
        """Whether the configuration is in the space: complete and canonical, and all constraints
        hold."""

    def active(self, configuration: Configuration) -> tuple[str, ...]:
        """The names of the parameters that matter: their `when` holds, and they have several
        values."""

    def default(self) -> Configuration:
        """The space's `default:` if it has one, else the first valid configuration. For a
        recording: the configuration nearest to the middle of all domains."""

    def starts(self) -> Sequence[Configuration]:
        """The default, then the other configurations that the user wants to be tried first; each
        once."""

    def sample(self, rng: random.Random) -> Configuration:
        """A random valid configuration, uniformly if counting is exact."""

    def repair(self, values: Mapping[str, Value], rng: random.Random) -> Configuration | None:
        """Makes `values` canonical and valid by changing few genes; None if it cannot."""

    def neighbours(self, configuration: Configuration) -> Sequence[Configuration]:
        """Valid configurations that differ in one active gene, nearest values first, in a stable
        order. Other genes differ only if the canonical form requires it."""

    def enumerate(self) -> Iterator[Configuration]:
        """Every valid configuration once, in lexicographic order of the parameters' values."""


_UNKNOWN: Final = -1  # index of a value that is missing or outside its domain
_KEPT: Final = 2**14  # configurations held as objects, at some 500 bytes each


class ExplicitSpace:
    """A `SearchSpace` over an explicit set of configurations. Repeated ones count once.

    A configuration is stored as its rank: the number whose mixed-radix digits are the indices of
    its values. Ranks sort lexicographically, and changing one gene is one addition, so a neighbour
    costs a single dictionary lookup.
    """

    def __init__(
        self, parameters: Sequence[Parameter], configurations: Iterable[Mapping[str, Value]]
    ) -> None:
        self._prepare(parameters)
        self._fill(self._rank_of_member(values) for values in configurations)

    def _prepare(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = tuple(parameters)
        # The type belongs to the key, since 1, 1.0 and True are equal but not the same value.
        self._index: tuple[dict[tuple[type, Value], int], ...] = tuple(
            {(type(value), value): i for i, value in enumerate(parameter.values)}
            for parameter in self._parameters
        )
        self._strides = strides(self._parameters)

    @classmethod
    def of_ranks(cls, parameters: Sequence[Parameter], ranks: Iterable[int]) -> ExplicitSpace:
        """The space of the configurations with these ranks. A rank is the sum of the values'
        indices times `strides`. With ranks a million configurations need no objects."""
        space = cls.__new__(cls)
        space._prepare(parameters)
        space._fill(ranks)
        return space

    def _fill(self, members: Iterable[int]) -> None:
        ranks = sorted(set(members))
        if not ranks:
            raise SpaceError("the space holds no configuration")
        self._ranks = ranks
        self._position = dict(zip(ranks, range(len(ranks)), strict=True))
        # Bounded, since a search looks at far more configurations of a large space than it tries.
        self._at: Callable[[int], Configuration] = lru_cache(maxsize=_KEPT)(self._make)
        self._genes = self._gene_matrix()
        self._middle = [(parameter.cardinality - 1) // 2 for parameter in self._parameters]
        self._steps = tuple(
            _steps_by_distance(parameter, sorted(set(row.tolist())))
            for parameter, row in zip(self._parameters, self._genes, strict=True)
        )

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self._parameters

    def __len__(self) -> int:
        return len(self._ranks)

    def size(self) -> SpaceSize:
        cartesian = math.prod(parameter.cardinality for parameter in self._parameters)
        return SpaceSize(cartesian=cartesian, valid=len(self._ranks), exact=True)

    def is_valid(self, configuration: Mapping[str, Value]) -> bool:
        return self.rank(configuration) is not None

    def rank(self, configuration: Mapping[str, Value]) -> int | None:
        """The configuration's rank (see `of_ranks`); None if it is not in the space."""
        if len(configuration) != len(self._parameters):
            return None
        indices = self._indices(configuration)
        if _UNKNOWN in indices:
            return None
        rank = self._rank(indices)
        return rank if rank in self._position else None

    def at_rank(self, rank: int) -> Configuration:
        return self._at(self._position[rank])

    def active(self, configuration: Configuration) -> tuple[str, ...]:
        """Every parameter that has more than one value; the same in all configurations."""
        return tuple(
            parameter.name
            for parameter, steps in zip(self._parameters, self._steps, strict=True)
            if len(steps) > 1
        )

    def default(self) -> Configuration:
        """The valid configuration nearest to the middle of every domain.

        A recording names no starting point, and the first configuration in order is a corner:
        the smallest tile with the fewest threads, say, and slower than nearly all others.
        """
        return self._at(self._nearest(self._middle, random.Random(0)))

    def starts(self) -> tuple[Configuration]:
        return (self.default(),)

    def sample(self, rng: random.Random) -> Configuration:
        return self._at(rng.randrange(len(self._ranks)))

    def repair(self, values: Mapping[str, Value], rng: random.Random) -> Configuration:
        """The valid configuration that differs from `values` in the fewest genes.

        If there are several, it is the one with the smallest steps; `rng` breaks ties. It is never
        None, because the space is not empty. A missing or unknown value counts as a change.
        """
        indices = self._indices(values)
        if _UNKNOWN not in indices:
            position = self._position.get(self._rank(indices))
            if position is not None:
                return self._at(position)
        return self._at(self._nearest(indices, rng))

    def neighbours(self, configuration: Configuration) -> Sequence[Configuration]:
        indices = self._indices(configuration)
        rank = self._rank(indices)
        found: list[tuple[int, int]] = []
        for index, stride, steps in zip(indices, self._strides, self._steps, strict=True):
            if len(steps) < 2:
                continue
            for distance, other in steps[index]:
                position = self._position.get(rank + (other - index) * stride)
                if position is not None:
                    found.append((distance, position))
        found.sort(key=lambda entry: entry[0])  # stable: ties keep the order of the genes
        return [self._at(position) for _, position in found]

    def enumerate(self) -> Iterator[Configuration]:
        return (self._at(position) for position in range(len(self._ranks)))

    def _indices(self, values: Mapping[str, Value]) -> list[int]:
        indices = []
        for parameter, index in zip(self._parameters, self._index, strict=True):
            value = values.get(parameter.name)
            indices.append(_UNKNOWN if value is None else index.get((type(value), value), _UNKNOWN))
        return indices

    def _rank(self, indices: Sequence[int]) -> int:
        return sum(map(int.__mul__, indices, self._strides))

    def _rank_of_member(self, values: Mapping[str, Value]) -> int:
        indices = self._indices(values)
        if _UNKNOWN in indices:
            parameter = self._parameters[indices.index(_UNKNOWN)]
            raise SpaceError(
                f"a configuration has {parameter.name} = {values.get(parameter.name)!r}, "
                "which is not one of its values"
            )
        return self._rank(indices)

    def _make(self, position: int) -> Configuration:
        rank = self._ranks[position]
        values: dict[str, Value] = {}
        for parameter, stride in zip(self._parameters, self._strides, strict=True):
            index, rank = divmod(rank, stride)
            values[parameter.name] = parameter.values[index]
        return Configuration(values)

    def _gene_matrix(self) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """Value indices, one row for each gene: a comparison along a row is one sweep of memory."""
        genes = np.empty((len(self._parameters), len(self._ranks)), dtype=np.int32)
        exact = np.int64 if self.size().cartesian < 2**63 else object
        rest = np.array(self._ranks, dtype=exact)
        for gene, stride in enumerate(self._strides):
            genes[gene], rest = rest // stride, rest % stride
        return genes

    def _nearest(self, indices: Sequence[int], rng: random.Random) -> int:
        wanted = np.array(indices, dtype=np.int32)[:, None]
        changed = (self._genes != wanted).sum(axis=0, dtype=np.int32)
        candidates = np.flatnonzero(changed == changed.min())
        if len(candidates) > 1:
            span = np.array([parameter.cardinality for parameter in self._parameters])[:, None]
            steps = np.where(wanted == _UNKNOWN, 0, np.abs(self._genes[:, candidates] - wanted))
            length = (steps / span).sum(axis=0)
            candidates = candidates[length <= length.min() + 1e-9]
        return int(candidates[rng.randrange(len(candidates))])


def strides(parameters: Sequence[Parameter]) -> tuple[int, ...]:
    """For each parameter, by how much a configuration's rank grows if the index of the value grows
    by 1."""
    found = [1]
    for parameter in reversed(parameters[1:]):
        found.append(found[-1] * parameter.cardinality)
    return tuple(reversed(found))


def _steps_by_distance(
    parameter: Parameter, used: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """For each index that occurs: (distance, other index) for all others that occur.

    Values that the parameter calls adjacent are at distance 1. The distance of all others is that
    of their indices, and at least 2.
    """
    steps: dict[int, list[tuple[int, int]]] = {}
    for index in used:
        adjacent = set(parameter.adjacent(parameter.values[index]))
        steps[index] = sorted(
            (1 if parameter.values[other] in adjacent else max(2, abs(other - index)), other)
            for other in used
            if other != index
        )
    return steps


class Parameter(ABC):
    """A named finite domain. `values` is a sequence with O(1) `len` and indexing.

    `outside`: the value of the inactive parameter, if it is not in the domain; else empty.
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
        """The index of `value` in the domain. Raises ValueError if it is not in the domain."""
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
        """Another value of the domain, or the same one if there is no other."""

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
        """Mostly the next or the previous value, sometimes any other one."""
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
    """The integers of `{range: [low, high, step]}`, both ends included."""

    kind = "range"

    def __init__(self, name: str, low: int, high: int, step: int = 1) -> None:
        super().__init__(name, range(low, high + 1, step))


class PowerOfTwo(OrderedParameter):
    """The powers of two of `{pow2: [low, high]}`, both ends included and powers of two."""

    kind = "pow2"

    def __init__(self, name: str, low: int, high: int) -> None:
        exponents = range(int(math.log2(low)), int(math.log2(high)) + 1)
        super().__init__(name, tuple(1 << e for e in exponents))


class Categorical(Parameter):
    """The values of `{choices: [...]}`, which have no order: every other value is a neighbour."""

    kind = "choices"

    def adjacent(self, value: Value) -> tuple[Value, ...]:
        return tuple(other for other in self.values if other != value)

    def mutate(self, value: Value, rng: random.Random) -> Value:
        others = self.adjacent(value)
        return rng.choice(others) if others else value

    def encode(self, value: Value) -> tuple[float, ...]:
        return tuple(float(other == value) for other in self.values)


class Boolean(Categorical):
    """The values false and true, encoded as one coordinate."""

    kind = "bool"

    def __init__(self, name: str, values: Sequence[Value] = (False, True)) -> None:
        super().__init__(name, values)

    def encode(self, value: Value) -> tuple[float, ...]:
        return (float(bool(value)),)
