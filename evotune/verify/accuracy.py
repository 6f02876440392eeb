"""Errors against the float64 reference, for each element as a share of its tolerance.

A problem gives the tolerance of each element of its outputs: how far a right kernel may be off
(`Problem.tolerances`). So one output may mix rows and columns of any scale, and none hides the
errors of others. An output is compared with one tensor, *expected*, that holds
-reference / tolerance and 1 / tolerance: an error then takes one multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evotune.problems.rounding import rounding_share

_RMS_LIMIT = 0.6
_SLACK = 1.01


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest and the root-mean-square error of an output, as shares of the tolerances."""

    max: float
    rms: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the errors of a correct kernel."""

    max: float
    rms: float

    def hold(self, errors: Errors) -> bool:
        """False for NaN errors too."""
        return errors.max <= self.max and errors.rms <= self.rms

    def scaled(self, factor: float) -> Limits:
        return Limits(factor * self.max, factor * self.rms)


LIMITS = Limits(1.0, _RMS_LIMIT)
"""No element is off by more than its tolerance, and not all of them by almost as much."""


def expected(reference: torch.Tensor, tolerance: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The *expected* tensor (see the module's docstring), its two parts one after the other. For
    outputs in half precision float32 is exact enough."""
    inverse = tolerance.reciprocal()
    both = torch.stack([-reference * inverse, inverse])
    return both if dtype == torch.float32 else both.float()


def is_rounding(expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """True if all elements but 1% have a tolerance of at most two roundings to `dtype`. Then an
    error of one rounding says nothing about a kernel."""
    least = rounding_share(expected[0], expected[1], dtype).amin() if expected.numel() else 0.0
    return bool(least >= 1.0 / _SLACK)


def is_one_rounding(error: float) -> bool:
    """True if an error, given as a share of two roundings, is at most one rounding."""
    return error <= _SLACK / 2


def as_rows(values: torch.Tensor) -> torch.Tensor:
    """The tensor with one row for each index of the first dimension."""
    return values.flatten(1) if values.dim() > 1 else values[:, None]


def error_terms(output: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Terms for `errors_of`, on the device, for several outputs (the first dimension). Infinities
    and NaN in an output give infinite or NaN errors."""
    shares = as_rows(torch.addcmul(expected[:, 0], output, expected[:, 1]))
    norm = torch.linalg.vector_norm
    return norm(shares, math.inf, dim=1), norm(shares, dim=1)


def errors_of(terms: Sequence[float], count: int) -> Errors:
    """The errors of one output of `count` elements, from its terms as numbers on the host."""
    largest, norm = terms
    return Errors(largest, norm / math.sqrt(count))


def errors_against(output: torch.Tensor, expected: torch.Tensor) -> Errors:
    """The errors of one output, read from the device at once."""
    terms = torch.stack(error_terms(output[None], expected[None])).flatten().tolist()
    return errors_of(terms, output.numel())


def worst_element(output: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Error and tolerance of the element with the largest share of its tolerance."""
    shares = torch.addcmul(expected[0], output, expected[1]).flatten().abs()
    place = int(shares.argmax())
    tolerance = 1.0 / float(expected[1].flatten()[place])
    return float(shares[place]) * tolerance, tolerance
