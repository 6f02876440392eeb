"""`SearchSpace`: how a search uses a space, be it from a YAML file or from a recording."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from evotune.space.parameters import Parameter
from evotune.trial import Configuration, Value


@dataclass(frozen=True, slots=True)
class SpaceSize:
    """The size of a space.

    - `cartesian`: the number of points before constraints.
    - `valid`: the number of distinct configurations that meet the constraints.
    - `exact`: False when `valid` is an estimate from samples.
    """

    cartesian: int
    valid: int
    exact: bool


class SearchSpace(Protocol):
    """A finite set of valid configurations. Inactive genes hold their canonical value.

    Every method is a pure function of its arguments; all randomness is the caller's `rng`.
    Configurations returned are valid, canonical and list the parameters in space order.
    """

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...

    def size(self) -> SpaceSize: ...

    def is_valid(self, configuration: Mapping[str, Value]) -> bool:
        """Whether these exact values are a member: complete, canonical, all constraints hold."""

    def active(self, configuration: Configuration) -> tuple[str, ...]:
        """Names of the parameters that matter: their `when` holds, and they have several values."""

    def default(self) -> Configuration:
        """The user's starting point if the space names one, else the first valid configuration.
        For a recording: the configuration nearest to the middle of all domains."""

    def starts(self) -> Sequence[Configuration]:
        """The default, then the other configurations that the user wants tried first; each once."""

    def sample(self, rng: random.Random) -> Configuration:
        """A valid configuration, uniformly where counting is exact."""

    def repair(self, values: Mapping[str, Value], rng: random.Random) -> Configuration | None:
        """`values` made canonical and valid by changing as few genes as it can, or None."""

    def neighbours(self, configuration: Configuration) -> Sequence[Configuration]:
        """Valid configurations that differ in one active gene, nearest values first, in a stable
        order. Other genes differ only where the canonical form demands it."""

    def enumerate(self) -> Iterator[Configuration]:
        """Every valid configuration once, in lexicographic order of the parameters' values."""
