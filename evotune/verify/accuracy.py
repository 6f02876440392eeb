"""Errors against the float64 reference, for each element as a share of its tolerance.

A problem gives the tolerance of each element of its outputs, the largest error of a right kernel
(`Problem.tolerances`). So one output may mix rows and columns of any scale, and none hides the
errors of others. An output is compared with one tensor, *expected*, that holds -reference /
tolerance and 1 / tolerance: an error then takes one multiply-add. For an output that may be
infinite there is a third part: the infinities of the reference, and 0 elsewhere. For an int64
output *expected* is the reference alone, because float64 cannot represent all values. For a float64
output its first part is the reference itself: reference / tolerance would be rounded by a good part
of 1. Outputs are `comparable`: complex ones by their parts, and bools as bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from evotune.problems.problem import Tensors, comparable, is_rounded, rounding_share
from evotune.verify.buffers import Inspection

_RMS_LIMIT = 0.6
_LEAST_COUNT = 8
"""The RMS error is over at least this many elements. If an output has fewer, the missing ones count
as exact, because one or two elements may all be off by almost their tolerances by chance."""
_SLACK = 1.01
_OF_INTEGERS = 0.5
"""The tolerance of integers: no difference is allowed."""


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
        """Whether the errors are within the limits; False for NaN errors."""
        return errors.max <= self.max and errors.rms <= self.rms

    def scaled(self, factor: float) -> Limits:
        return Limits(factor * self.max, factor * self.rms)


LIMITS = Limits(1.0, _RMS_LIMIT)
"""No error may exceed its tolerance, and the root mean square of all errors must stay clearly
below.
"""


_SHORT = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
"""For outputs of these types float32 is exact enough."""


def expected(
    reference: torch.Tensor,
    tolerance: torch.Tensor,
    dtype: torch.dtype,
    *,
    may_be_infinite: bool = False,
) -> torch.Tensor:
    """The *expected* tensor (see the module's docstring): its parts stacked along a new first
    dimension."""
    if reference.dtype == torch.int64:
        return reference[None]
    reference, tolerance = comparable(reference), comparable(tolerance)
    parts = []
    if may_be_infinite:
        infinite = reference.isinf()
        parts = [torch.where(infinite, reference, 0.0)]
        reference, tolerance = (each.masked_fill(infinite, 1.0) for each in (reference, tolerance))
    inverse = tolerance.reciprocal()
    if dtype == torch.float64:
        return torch.stack([reference, inverse])
    whole = torch.stack([-reference * inverse, inverse, *parts])
    return whole.float() if dtype in _SHORT else whole


def tolerance_in(expected: torch.Tensor) -> torch.Tensor:
    """The tolerances, in float64, from which an *expected* tensor was made."""
    if expected.dtype == torch.int64:
        return torch.full_like(expected[0], _OF_INTEGERS, dtype=torch.float64)
    return expected[1].double().reciprocal()  # a copy: the set stays as it is


def shares_of(output: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Errors as shares of the tolerances. If the reference is infinite: 0 for the same infinity,
    else infinite."""
    if expected.dtype == torch.int64:
        return (output.long() - expected[0]).double() / _OF_INTEGERS
    if output.dtype == torch.float64:
        return (output - expected[0]).mul_(expected[1])
    # torch has no arithmetic on floats of 8 bits.
    if output.element_size() == 1 or not output.is_floating_point():
        output = output.to(expected.dtype)
    shares = torch.addcmul(expected[0], output, expected[1])
    if len(expected) < 3:
        return shares
    off = torch.where(output == expected[2], 0.0, math.inf)
    return torch.where(expected[2] == 0.0, shares, off)


def is_rounding(expected: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """True (on the device) if all elements but 1% have a tolerance of at most two roundings to
    `dtype`. Then an error of one rounding says nothing about a kernel."""
    if not (is_rounded(dtype) and expected.numel()):
        return torch.zeros((), dtype=torch.bool, device=expected.device)
    return rounding_share(in_tolerances(expected, dtype), expected[1], dtype).amin() >= 1.0 / _SLACK


def in_tolerances(expected: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The magnitude of the reference of an output of floats, in units of the tolerance."""
    scaled = expected[0] * expected[1] if dtype == torch.float64 else expected[0]
    return scaled.abs()


def is_one_rounding(error: float) -> bool:
    """True if an error, given as a share of two roundings, is at most one rounding."""
    return error <= _SLACK / 2


def as_rows(values: torch.Tensor) -> torch.Tensor:
    """The tensor with one row for each index of the first dimension."""
    return values.flatten(1) if values.dim() > 1 else values[:, None]


def error_terms(output: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The terms from which `errors_of` computes errors, on the device, for each output along the
    first dimension. Infinities and NaN in an output give infinite or NaN errors."""
    shares = as_rows(shares_of(output, expected.movedim(1, 0)))
    norm = torch.linalg.vector_norm
    return norm(shares, math.inf, dim=1), norm(shares, dim=1)


def errors_of(terms: Sequence[float], count: int) -> Errors:
    """The errors of one output of `count` elements, from its terms as numbers on the host."""
    largest, norm = terms
    return Errors(largest, norm / math.sqrt(max(count, _LEAST_COUNT)))


def errors_against(output: torch.Tensor, expected: torch.Tensor) -> Errors:
    """The errors of one output, read from the device at once."""
    terms = torch.stack(error_terms(output[None], expected[None])).flatten().tolist()
    return errors_of(terms, output.numel())


def not_finite(output: torch.Tensor, expected: torch.Tensor) -> int:
    """The elements of one output that are NaN or infinite where the reference is finite."""
    wrong = ~torch.isfinite(output.double())
    if len(expected) == 3:
        wrong &= (expected[2] == 0.0) | output.isnan()
    return int(wrong.sum())


@dataclass(frozen=True, slots=True)
class Element:
    """An element of an output: its error and tolerance, its place, what it is and what it should
    be."""

    error: float
    tolerance: float
    place: tuple[int, ...]
    found: float | int
    wanted: float | int

    def __str__(self) -> str:
        """`[3,17] is 0.25 instead of 0.5`, with as many digits as tell the two apart."""
        digits = 8 if f"{self.found:.8g}" != f"{self.wanted:.8g}" else 17
        found, wanted = (
            str(value) if isinstance(value, int) else f"{value:.{digits}g}"
            for value in (self.found, self.wanted)
        )
        return f"[{','.join(map(str, self.place))}] is {found} instead of {wanted}"


def worst_element(output: torch.Tensor, expected: torch.Tensor) -> Element:
    """The element with the largest share of its tolerance."""
    shares = shares_of(output, expected).abs()
    index = shares.flatten().argmax()
    place = tuple(int(i) for i in torch.unravel_index(index, shares.shape))
    found = output[place].item()
    wanted: float
    if expected.dtype == torch.int64:
        tolerance, wanted = _OF_INTEGERS, expected[0][place].item()
    else:
        tolerance = 1.0 / float(expected[1][place])
        wanted = float(expected[0][place])
        wanted = wanted if output.dtype == torch.float64 else -wanted * tolerance
        wanted = wanted if output.is_floating_point() else round(wanted)
        if len(expected) == 3 and float(expected[2][place]):
            wanted = float(expected[2][place])
    return Element(float(shares[place]) * tolerance, tolerance, place, found, wanted)


# Evidence of launches: computed on the device, read together, judged later.
#
# Reading takes longer than computing it, since the device must first finish all queued work. So the
# evidence of many launches is read at once.
@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of one launch, or of one row of launches, on each of several sets of buffers.

    All tensors are on the device.

    - `inspection`: of the launches' writes; None if not wanted.
    - `outputs`: copies of the outputs.
    - `terms`: of the outputs' errors; see `error_terms`.
    - `flags`: more facts, with one bool for each set.
    """

    inspection: Inspection | None
    outputs: Tensors = field(default_factory=dict)
    terms: Mapping[str, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    flags: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def sets(self) -> int:
        if self.inspection:
            return len(self.inspection.flags[0])
        return len(next(iter(self.outputs.values())))


@dataclass(frozen=True, slots=True)
class Findings:
    """The evidence of set `number` after reading it. `damaged`: there were forbidden writes;
    `damage` and `not_zeroed` describe them (see `Inspection`)."""

    evidence: Evidence
    number: int
    damaged: bool
    errors: Mapping[str, Errors]
    flags: Mapping[str, bool]

    def output(self, name: str) -> torch.Tensor:
        return self.evidence.outputs[name][self.number]

    def damage(self) -> str:
        inspection = self.evidence.inspection
        return inspection.damage(self.number) if inspection else ""

    def not_zeroed(self) -> str:
        inspection = self.evidence.inspection
        return inspection.not_zeroed(self.number) if inspection else ""


def gather(
    inspection: Inspection | None, outputs: Tensors, expected: Mapping[str, torch.Tensor]
) -> Evidence:
    """The evidence of launches that have returned, with copies of their outputs. `expected` has one
    row for each set, or one row for all (see the module's docstring)."""
    terms = {name: error_terms(outputs[name], wanted) for name, wanted in expected.items()}
    return Evidence(inspection, outputs, terms)


def read(evidence: Sequence[Evidence]) -> list[list[Findings]]:
    """Reads evidence from the device, waiting once. Returns, for each evidence, the findings of its
    sets."""
    rows: list[torch.Tensor] = []
    for each in evidence:
        rows += [*(each.inspection.flags if each.inspection else ()), *each.flags.values()]
        rows += [term for terms in each.terms.values() for term in terms]
    # Flags and terms go into one row of float64, so that one read suffices.
    numbers = iter(torch.cat(rows).tolist() if rows else ())
    answers = iter([[next(numbers) for _ in range(len(row))] for row in rows])
    return [_findings(each, answers) for each in evidence]


def _findings(evidence: Evidence, answers: Iterator[list[float]]) -> list[Findings]:
    damaged: list[float] = []
    if evidence.inspection:
        changed, outside = (next(answers) for _ in evidence.inspection.flags)
        damaged = [max(each) for each in zip(changed, outside, strict=True)]
    flags = {name: next(answers) for name in evidence.flags}
    terms = {name: [next(answers) for _ in terms] for name, terms in evidence.terms.items()}
    return [
        Findings(
            evidence,
            number,
            bool(damaged and damaged[number]),
            errors={
                name: errors_of([t[number] for t in found], evidence.outputs[name][number].numel())
                for name, found in terms.items()
            },
            flags={name: bool(found[number]) for name, found in flags.items()},
        )
        for number in range(evidence.sets)
    ]
