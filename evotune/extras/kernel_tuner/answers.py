"""Finds how a script's `answer` follows from the kernel's arguments, by their values.

Simple expressions over the arrays and the scalars are tried in turn. One that gives the answer's
values on the script's own data is the reference, whatever way the script took.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

_Array: TypeAlias = np.ndarray[Any, Any]

_MOST_ELEMENTS = 4096
_FEWEST_VALUES = 8  # different ones: less tells too little
_ROWS = 4
_UNARY: dict[str, Any] = {
    "{}": lambda x: x,
    "{}.square()": np.square,
    "{}.sqrt()": np.sqrt,
    "{}.exp()": np.exp,
    "{}.log()": np.log,
    "{}.sin()": np.sin,
    "{}.cos()": np.cos,
    "{}.tanh()": np.tanh,
    "{}.abs()": np.abs,
    "{}.relu()": lambda x: np.maximum(x, 0),
    "-{}": np.negative,
}
_BINARY: dict[str, Any] = {
    "{} + {}": np.add,
    "{} - {}": np.subtract,
    "{} * {}": np.multiply,
    "{} / {}": np.divide,
    "{}.maximum({})": np.maximum,
    "{}.minimum({})": np.minimum,
}
_WITH_CONSTANT: dict[str, Any] = {
    "{1!r} * {0}": np.multiply,
    "{0} + {1!r}": np.add,
    "{0} - {1!r}": np.subtract,
    "{0} / {1!r}": np.divide,
    "{0} ** {1!r}": np.power,
}


def torch_expression(
    expected: _Array, inputs: Mapping[str, _Array], constants: Mapping[str, float]
) -> str:
    """The answer as a torch expression over the inputs' names; "" where none is found."""
    if expected.dtype.kind != "f" or not np.isfinite(expected).all():
        return ""
    named = {name: array for name, array in inputs.items() if array.dtype.kind in "fiu"}
    known = np.array(expected)
    with np.errstate(all="ignore"):
        for tried in (_elementwise(known, named, constants), _products(known, named)):
            for text, values, wanted in tried:
                if _agree(values, wanted, expected.dtype):
                    return text
    return ""


def _agree(values: _Array, wanted: _Array, dtype: np.dtype[Any]) -> bool:
    if values.shape != wanted.shape or len(np.unique(wanted)) < _FEWEST_VALUES:
        return False
    tolerance = 2e-2 if dtype.itemsize == 2 else 1e-4
    scale = float(np.abs(wanted).max())
    return np.allclose(values, wanted, rtol=tolerance, atol=tolerance * scale * 1e-2)


def _elementwise(
    expected: _Array, inputs: Mapping[str, _Array], constants: Mapping[str, float]
) -> Iterator[tuple[str, _Array, _Array]]:
    """Expressions with the values of some elements: theirs and the answer's."""
    places = np.random.default_rng(0).integers(0, expected.size, _MOST_ELEMENTS)
    wanted = expected.reshape(-1)[places].astype(np.float64)
    parts = {
        name: array.reshape(-1)[places].astype(np.float64)
        for name, array in inputs.items()
        if array.shape == expected.shape
    }
    for name, part in parts.items():
        for words, unary in _UNARY.items():
            yield words.format(name), unary(part), wanted
    for first, second in itertools.permutations(parts, 2):
        for words, binary in _BINARY.items():
            yield words.format(first, second), binary(parts[first], parts[second]), wanted
    numbers = dict.fromkeys([*constants.values(), 1.0, 2.0])
    for name, number in itertools.product(parts, numbers):
        for words, binary in _WITH_CONSTANT.items():
            yield words.format(name, number), binary(parts[name], number), wanted
    for (first, second), number in itertools.product(itertools.permutations(parts, 2), numbers):
        yield f"{number!r} * {first} + {second}", number * parts[first] + parts[second], wanted


def _products(
    expected: _Array, inputs: Mapping[str, _Array]
) -> Iterator[tuple[str, _Array, _Array]]:
    """Products of two matrices, by some rows of the answer."""
    if expected.ndim != 2:
        return
    matrices = {name: array for name, array in inputs.items() if array.ndim == 2}
    rows = np.linspace(0, len(expected) - 1, _ROWS).astype(int)
    wanted = expected[rows].astype(np.float64)
    for (first, a), (second, b) in itertools.product(matrices.items(), repeat=2):
        for words, left, right in (
            ("{} @ {}", a, b), ("{} @ {}.T", a, b.T), ("{}.T @ {}", a.T, b)
        ):  # fmt: skip
            if (left.shape[0], right.shape[1]) == expected.shape and left.shape[1] == len(right):
                product = left[rows].astype(np.float64) @ right.astype(np.float64)
                yield words.format(first, second), product, wanted
