"""Errors against the float64 reference, and the limits that PyTorch's own error sets."""

from __future__ import annotations

import math
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


def error_terms(output: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """(2,) on their device: the largest absolute error and the root mean square, for `Errors`.
    Both in the same shape; infinities and NaN in `output` give infinite or NaN errors."""
    difference = torch.sub(output, reference).view(-1)  # in float64, as the reference is
    largest = torch.linalg.vector_norm(difference, math.inf)
    norm = torch.linalg.vector_norm(difference) / math.sqrt(difference.numel())
    return torch.stack([largest, norm])


def errors_against(output: torch.Tensor, reference: torch.Tensor) -> Errors:
    """As `error_terms`, read at once."""
    return Errors(*error_terms(output, reference).tolist())


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
