"""Turns a space given as a path, a shipped name or objects into a space file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from evotune.engine.space_folder import materialize
from evotune.errors import UsageError
from evotune.scratch import scratch_folder
from evotune.space.objects import Constraint, Domain, Kernel, Space
from evotune.space.objects.plain_data import Expression
from evotune.space.suggest import describe
from evotune.trial import Value
from evotune.user_code import trust

AnySpace: TypeAlias = "str | Path | Space | Kernel"
"""The path of a space file, the name of a shipped space, a `Space`, or a kernel: `CppKernel`,
`CudaKernel`, `TritonKernel`. A kernel needs the other arguments of `Space` as keywords. With a
problem of your own its baseline is `torch:best`, unless you name another."""


class SpaceKeywords(TypedDict, total=False):
    """The arguments of `Space` beside its kernel."""

    name: str
    description: str
    root: str | Path
    problem: str | type
    dtype: object
    shapes: Sequence[Mapping[str, Value]]
    variants: Sequence[Mapping[str, Value]]
    held_out: Sequence[Mapping[str, Value]]
    let: Mapping[str, Expression]
    parameters: Mapping[str, Sequence[Value] | Domain | Mapping[str, object]]
    constraints: Sequence[Expression | Constraint | Mapping[str, Expression]]
    after_compile: Sequence[Expression | Constraint | Mapping[str, Expression]]
    baseline: str
    objective: str | Sequence[str]
    deterministic: bool
    default: Mapping[str, Value]
    try_first: Sequence[Mapping[str, Value]]
    search: Mapping[str, str | int]
    budget: Mapping[str, int | float]
    stop: Mapping[str, int]
    timeouts: Mapping[str, float]


@contextlib.contextmanager
def space_file(
    space: AnySpace, keywords: Mapping[str, Any], *, compile_only: bool = False
) -> Iterator[str]:
    """The path of the space's file, or its shipped name. A file made of objects is deleted at the
    end.

    UsageError when `space` is not a space; SpaceError for a mistake in it.
    """
    if isinstance(space, Kernel):
        usual = {} if keywords.get("problem") == "attention" else {"baseline": "torch:best"}
        given: dict[str, Any] = {**usual, **keywords}
        space = Space(kernel=space, **given)
    elif keywords:
        names = ", ".join(keywords)
        raise UsageError(f"{names}: only for a kernel; a whole space says it itself")
    if isinstance(space, Space):
        with scratch_folder() as folder:
            yield str(materialize(space, folder, compile_only=compile_only))
    elif isinstance(space, str | Path):
        yield os.fspath(space)
    else:
        expected = "a path, a shipped name, a Space or a kernel"
        raise UsageError(f"expected {expected}, found {describe(space)}")


@contextlib.contextmanager
def trusting(given: bool) -> Iterator[None]:
    """Within the block all code is agreed to, if `given`, as with the command line's --trust."""
    before = trust.ask
    if given:
        trust.ask = lambda paths: True
    try:
        yield
    finally:
        trust.ask = before
