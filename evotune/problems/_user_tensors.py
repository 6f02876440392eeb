"""How a user's problem describes a tensor that is not of the problem's own dtype: `Tensor`."""

from __future__ import annotations

import math
import operator
import sys
from dataclasses import dataclass
from typing import Any

from evotune.problems.element_types import ELEMENT_BYTES, INTEGERS
from evotune.problems.problem import TensorSpec

INDICES = "indices"
_MOST = {"uint8": 1 << 8, "int32": 1 << 31, "int64": 1 << 63}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in the answer of `inputs` or `outputs`, where a shape alone says too little.

    - `dtype`: float16, bfloat16, float32, float8_e4m3, float8_e5m2, uint8, int32 or int64; the
      problem's own if it is not given.
    - `values`: of an input. None: as `make_input` makes them. `range(0, columns)`: integers of that
      range, any of which may stand anywhere. `(0.01, 10.0)`: numbers between these, drawn evenly in
      the logarithm, such as scales. `"indices"`: lengths and places that must fit together;
      `make_indices` makes them, and they change only together, between launches.
    """

    shape: tuple[int, ...]
    dtype: str = ""
    values: range | tuple[float, float] | str | None = None

    @property
    def has_indices(self) -> bool:
        """Whether its values are lengths and places that must fit together."""
        return self.values == INDICES

    def wrong(self, *, is_output: bool) -> str:  # noqa: PLR0911
        """Why the description makes no sense, in one line; "" when it does."""
        if self.values is not None and is_output:
            return "is an output, which has no values of its own"
        if self.dtype and self.dtype not in ELEMENT_BYTES:
            return f"has the dtype {self.dtype!r}, expected one of {', '.join(ELEMENT_BYTES)}"
        if isinstance(self.values, range):
            if not self.values or self.dtype not in INTEGERS:
                return f"has the values {self.values}, expected some integers of an integer type"
            ends = sorted((self.values[0], self.values[-1]))  # min() would walk through all
            least = 0 if self.dtype == "uint8" else -_MOST[self.dtype]
            if ends[0] < least or ends[1] >= _MOST[self.dtype]:
                return f"has the values {self.values}, which do not fit {self.dtype}"
            if (ends[1] - ends[0]) // abs(self.values.step) >= sys.maxsize:
                return f"has the values {self.values}, expected fewer than 2**63 of them"
        elif self.values is not None and self.values != INDICES and not _is_range(self.values):
            expected = "a range, two positive numbers or 'indices'"
            return f"has the values {self.values!r}, expected {expected}"
        elif self.values is None and self.dtype in INTEGERS and not is_output:
            return f"is {self.dtype} without values: say range(first, end) or 'indices'"
        elif self.values == INDICES and self.dtype not in INTEGERS:
            return "has indices of no integer type"
        return ""

    def spec(self, name: str, dtype: str, *, is_output: bool) -> TensorSpec:
        """`dtype`: the problem's own."""
        is_ranged = isinstance(self.values, range)
        is_index = self.values == INDICES or is_ranged
        dtype = self.dtype or dtype
        return TensorSpec(
            name,
            self.shape,
            dtype,
            is_output,
            is_index=is_index,
            is_ranged=is_ranged,
            is_steady=self.values == INDICES,
        )


def tensor_of(found: Any) -> Tensor | None:
    """The tensor that a user's shape, or `Tensor`, means; None for anything else."""
    shape = found.shape if isinstance(found, Tensor) else found
    if not isinstance(shape, tuple | list):
        return None
    try:
        extents = tuple(map(operator.index, shape))
    except TypeError:
        return None
    if isinstance(found, Tensor):
        return Tensor(extents, found.dtype, found.values)
    return Tensor(extents)


def _is_range(found: Any) -> bool:
    if not isinstance(found, tuple) or len(found) != 2:
        return False
    numbers = all(isinstance(each, int | float) and math.isfinite(each) for each in found)
    return numbers and 0.0 < found[0] <= found[1]
