"""Compares kernels of other problems than attention with the fallback on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ._checking import Result, Row, check_cases
from ._problem_package import ProblemKernels

_ROUNDINGS = 100
_NARROW_ROUNDINGS = 2
"""For 8-bit floats: two results may be rounded to neighbouring values."""


def check_problem(kernels: ProblemKernels) -> Result:
    """Calls every timed case, won or not, on seeded inputs, whatever the versions here are. If
    there is a fallback, results may differ from its results by a hundred roundings of the largest
    value, and integers not at all. Otherwise two calls must give the same bits."""
    device = torch.device(kernels.kernels.device_type)

    def compare(symbols: Mapping[str, Any], case: str) -> Row:
        return _checked_problem(kernels, symbols, case, device)

    return check_cases(_timed(kernels), symbols_in_words, compare)


def symbols_in_words(symbols: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in symbols.items())


def _timed(kernels: ProblemKernels) -> list[dict[str, Any]]:
    """The symbols of the cases that kernels won, then of the other timed ones: there they serve
    too."""
    found = kernels.dispatch.exact_cases()
    for like in kernels.sizes.tuned:
        if not any(all(each.get(n) == value for n, value in like.items()) for each in found):
            found.append(dict(like))
    return found


def _checked_problem(
    kernels: ProblemKernels, symbols: Mapping[str, Any], case: str, device: torch.device
) -> Row:
    tensors, options = timed_inputs(kernels, symbols, device)
    with torch.no_grad():
        found = kernels.run(tensors, options, any_version=True)
        if kernels.fallback is None:
            known: Sequence[torch.Tensor] = kernels.run(tensors, options, any_version=True)
        else:
            given = kernels.fallback(*tensors, **options)
            single = isinstance(given, torch.Tensor)
            known = (given,) if single else tuple(given[name] for name in kernels.outputs)
    worst = (0.0, 0.0)
    for name, mine, other in zip(kernels.outputs, found, known, strict=True):
        allowed = 0.0 if kernels.fallback is None else _allowed(kernels, name, other)
        error = float((mine.double() - other.double()).abs().max())
        if not error <= allowed:  # NaN is a difference
            return Row(case, error, allowed, f"{name} differs")
        worst = max(worst, (error, allowed))
    return Row(case, *worst, "")


def timed_inputs(
    kernels: ProblemKernels, symbols: Mapping[str, Any], device: torch.device
) -> tuple[list[torch.Tensor | None], dict[str, Any]]:
    """Seeded inputs and the options of a call that is the case with these symbols."""
    generator = torch.Generator(device).manual_seed(0)
    tensors = [
        _made(kernels, name, symbols, generator)
        if symbols.get(kernels.flag_of.get(name, ""), True)
        else None
        for name in kernels.inputs
    ]
    return tensors, {name: symbols[name] for name in kernels.sizes.options if name in symbols}


def _allowed(kernels: ProblemKernels, name: str, known: torch.Tensor) -> float:
    dtype = kernels.type_of(name)
    if not dtype.is_floating_point:
        return 0.0
    largest = float(known.double().abs().max())
    if dtype.itemsize == 1:
        return _NARROW_ROUNDINGS * torch.finfo(dtype).eps * largest
    coarser = max(torch.finfo(dtype).eps, torch.finfo(kernels.dtype).eps)
    return _ROUNDINGS * coarser * largest


def _made(
    kernels: ProblemKernels, name: str, symbols: Mapping[str, Any], generator: torch.Generator
) -> torch.Tensor:
    """Seeded values that the problem allows: normal ones, or between its two ends."""
    shape, dtype = kernels.dispatch.extents(name, symbols), kernels.type_of(name)
    device, ends = generator.device, kernels.values.ends(name, symbols)
    if not dtype.is_floating_point:
        least, most = ends or (0, 0)
        made = torch.randint(least, most + 1, shape, generator=generator, device=device)
        return made.to(dtype)
    if ends is not None:
        share = torch.rand(shape, generator=generator, device=device)
        spread = torch.exp(math.log(ends[0]) + share * math.log(ends[1] / ends[0]))
        return spread.to(dtype)
    values = torch.randn(shape, generator=generator, device=device)
    if dtype.itemsize == 1:
        values = values.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    return values.to(dtype).contiguous()
