"""The values that a parameter may have, and the constraints on them, as Python objects.

parameters = {
    "BLOCK": [64, 128],                         # a list of integers, booleans or words
    "STAGES": ints(1, 4),                       # 1, 2, 3, 4
    "WARPS": powers_of_two(1, 8),               # 1, 2, 4, 8
    "ORDER": choices("rows", "columns"),        # words without an order
    "UNROLL": booleans(when="STAGES > 1"),      # it matters only where the condition holds
}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evotune.space.objects.plain_data import Described, Expression
from evotune.trial import Value


@dataclass(frozen=True, slots=True)
class Domain(Described):
    """A parameter's values, made by `ints`, `powers_of_two`, `choices`, `booleans` or `values`.

    - `form`: the key of the space file: range, pow2, choices, bool or values.
    - `given`: that key's value.
    - `when`: the condition under which the parameter matters.
    - `otherwise`: its value where `when` does not hold; its first value if None.
    - `default`: its value in the configuration that the search starts from.
    """

    form: str
    given: object
    when: Expression | None = None
    otherwise: Value | None = None
    default: Value | None = None

    def to_data(self) -> Mapping[str, object]:
        return {
            self.form: self.given,
            "when": self.when,
            "otherwise": self.otherwise,
            "default": self.default,
        }


def ints(
    low: int,
    high: int,
    step: int = 1,
    *,
    when: Expression | None = None,
    otherwise: int | None = None,
    default: int | None = None,
) -> Domain:
    """The integers from `low` to `high`, both included.

    >>> ints(1, 4).given
    (1, 4)
    >>> ints(0, 32, 8, default=16).default
    16
    """
    given = (low, high) if step == 1 else (low, high, step)
    return Domain("range", given, when, otherwise, default)


def powers_of_two(
    low: int,
    high: int,
    *,
    when: Expression | None = None,
    otherwise: int | None = None,
    default: int | None = None,
) -> Domain:
    """The powers of two from `low` to `high`, both included and powers of two themselves.

    >>> powers_of_two(1, 8).form
    'pow2'
    """
    return Domain("pow2", (low, high), when, otherwise, default)


def choices(
    *words: str | int,
    when: Expression | None = None,
    otherwise: str | int | None = None,
    default: str | int | None = None,
) -> Domain:
    """Words (or integers) without an order. In a C++ or CUDA source `NAME` is a number and
    `NAME_WORD` are its constants.

    >>> choices("rows", "columns").given
    ('rows', 'columns')
    """
    return Domain("choices", words, when, otherwise, default)


def booleans(
    *,
    when: Expression | None = None,
    otherwise: bool | None = None,
    default: bool | None = None,
) -> Domain:
    """False and true.

    >>> booleans(when="STAGES > 1").when
    'STAGES > 1'
    """
    return Domain("bool", True, when, otherwise, default)


def values(
    listed: Sequence[Value],
    *,
    when: Expression | None = None,
    otherwise: Value | None = None,
    default: Value | None = None,
) -> Domain:
    """A list of integers, of booleans or of words. Needed only with one of the other arguments;
    else pass the list itself.

    >>> values([64, 128], default=128).given
    [64, 128]
    """
    return Domain("values", listed, when, otherwise, default)


@dataclass(frozen=True, slots=True)
class Constraint(Described):
    """An expression that must hold, and the reason, in words for reports. Without a reason, pass
    the text itself.

    >>> Constraint("BLOCK * STAGES <= 512", reason="shared memory").reason
    'shared memory'
    """

    expr: Expression
    reason: str | None = None

    def to_data(self) -> Mapping[str, object]:
        return {"expr": self.expr, "reason": self.reason}
