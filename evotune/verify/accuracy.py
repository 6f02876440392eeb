"""Errors against the float64 reference, and the limits that PyTorch's own error sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Errors:
    """Maximum absolute and root-mean-square error of an output."""

    max: float
    rms: float

    def worst(self, other: Errors) -> Errors:
        return Errors(max(self.max, other.max), max(self.rms, other.rms))


@dataclass(frozen=True, slots=True)
class Limits:
    """Errors a correct kernel stays within."""

    max: float
    rms: float

    def hold(self, errors: Errors) -> bool:
        """False for NaN errors too."""
        return errors.max <= self.max and errors.rms <= self.rms

    def scaled(self, factor: float) -> Limits:
        return Limits(factor * self.max, factor * self.rms)

    def widest(self, other: Limits) -> Limits:
        return Limits(max(self.max, other.max), max(self.rms, other.rms))


def as_rows(values: torch.Tensor) -> torch.Tensor:
    """All that belongs to each index of the first dimension as a row."""
    return values.flatten(1) if values.dim() > 1 else values[:, None]


def error_terms(output: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What `errors_of` needs of several outputs, the first dimension, on their device. Infinities
    and NaN in an output give it infinite or NaN errors."""
    difference = as_rows(torch.sub(output, reference))  # in float64, as the reference is
    norm = torch.linalg.vector_norm
    return norm(difference, math.inf, dim=1), norm(difference, dim=1)


def errors_of(terms: Sequence[float], count: int) -> Errors:
    """The terms of one output of `count` elements, read."""
    largest, norm = terms
    return Errors(largest, norm / math.sqrt(count))


def errors_against(output: torch.Tensor, reference: torch.Tensor) -> Errors:
    """Of one output, read at once."""
    terms = torch.cat(error_terms(output[None], reference[None])).tolist()
    return errors_of(terms, output.numel())


def limits_for(yardstick: Errors, reference: torch.Tensor, dtype: torch.dtype) -> Limits:
    """Twice the yardstick's errors plus one rounding more to `dtype`: a unit in the last place
    at max|O| for the maximum, a relative epsilon for the RMS.
    """
    largest = float(reference.abs().max())
    root_mean_square = math.sqrt(float((reference * reference).mean()))
    return Limits(
        2 * yardstick.max + ulp(largest, dtype),
        2 * yardstick.rms + torch.finfo(dtype).eps * root_mean_square,
    )


def ulp(magnitude: float, dtype: torch.dtype) -> float:
    """Distance between neighbouring values of `dtype` at `magnitude`."""
    if magnitude <= 0:
        return torch.finfo(dtype).tiny
    _, exponent = math.frexp(magnitude)
    return math.ldexp(float(torch.finfo(dtype).eps), exponent - 1)
