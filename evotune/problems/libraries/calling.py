"""Calls of a library on one case.

What a user's program does once is not timed: importing, copying inputs into the library's layout,
planning, building masks, compiling. An output is a view of what the library returns. The flash
libraries and FlashInfer take (batch, length, heads, head_dim): their inputs are contiguous in that
order, as a projection leaves them, whatever the case's layout is. FlexAttention takes (batch,
heads, length, head_dim), with the strides of the case.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Protocol, cast

import torch

from evotune.problems.libraries import LIBRARIES, UnusableBaseline
from evotune.problems.problem import Case, Tensors

_HALF = ("float16", "bfloat16")
_MOST_REASON = 300


class Caller(Protocol):
    """A module of this package that calls a library."""

    def prepared(
        self, name: str, library: ModuleType, case: Case, inputs: Tensors
    ) -> Callable[[], Tensors]:
        """The call to time. Raises UnusableBaseline for a case that the library does not
        compute."""


def calls(case: Case, inputs: Tensors, name: str) -> dict[str, Callable[[], Tensors]]:
    """The library's call, by the baseline's name. If the library cannot compute the case, the call
    raises UnusableBaseline."""
    return {name: _call(case, inputs, name)}


def _call(case: Case, inputs: Tensors, name: str) -> Callable[[], Tensors]:
    try:
        with _same_environment():
            caller = cast(
                Caller, importlib.import_module(f"{__package__}.{LIBRARIES[name].caller}")
            )
            if "attn_mask" in inputs:
                raise UnusableBaseline("evotune does not call it with a mask")
            call = caller.prepared(name, _imported(name), case, inputs)
            call()  # compiles and loads what the library needs
    except UnusableBaseline as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 (the code of a library that raises what it likes)
        told = " ".join(str(error).split())
        reason = f"{type(error).__name__}: {told}"[:_MOST_REASON]
    else:
        return call
    return functools.partial(_refuse, f"{name}: {reason}")


@contextlib.contextmanager
def _same_environment() -> Iterator[None]:
    """Takes back the variables that libraries set: on a CPU a kernel would be blamed for them."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


def _refuse(reason: str) -> Tensors:
    raise UnusableBaseline(reason)


def _imported(name: str) -> ModuleType:
    library = LIBRARIES[name]
    try:
        found = importlib.import_module(library.module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{library.module}.".startswith(f"{error.name}."):
            raise UnusableBaseline(f"{library.package} is not installed") from error
        raise
    if getattr(found, "__file__", "") is None:  # a folder that another one's modules lie in
        raise UnusableBaseline(f"{library.package} is not installed")
    return found


def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a GPU. Raises UnusableBaseline for another device."""
    if device.type != "cuda":
        raise UnusableBaseline("it needs a CUDA GPU")
    return torch.cuda.get_device_capability(device)


def demand_half(case: Case) -> None:
    """Raises UnusableBaseline unless the case is in half precision."""
    if case.symbols["dtype"] not in _HALF:
        raise UnusableBaseline(f"it has no {case.symbols['dtype']}")


def demand_arch(device: torch.device, majors: range) -> None:
    """Raises UnusableBaseline unless the GPU is of an architecture with one of these major
    numbers."""
    major, minor = capability(device)
    if major not in majors:
        raise UnusableBaseline(f"it does not run on sm_{major}{minor}")


def demand_sizes(case: Case, step: int, most: int) -> None:
    """Raises UnusableBaseline unless both head sizes are multiples of `step` and at most `most`."""
    for name in ("head_dim", "value_dim"):
        size = int(case.symbols.get(name, case.symbols["head_dim"]))
        if size % step or size > most:
            raise UnusableBaseline(f"it has no {name} of {size}")


def rows_before_heads(inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v as (batch, length, heads, head_dim), contiguous."""
    q, k, v = (inputs[name].transpose(1, 2).contiguous() for name in "qkv")
    return q, k, v


def usable_pages(case: Case, inputs: Tensors) -> torch.Tensor:
    """The page table with page 0 in the entries beyond a sequence's length, because these libraries
    may read them and need valid pages."""
    size = int(case.symbols["page_size"])
    table, lengths = inputs["page_table"], inputs["seq_lens"]
    first_key = torch.arange(table.shape[1], device=table.device) * size
    return table.masked_fill(first_key >= lengths[:, None], 0)
