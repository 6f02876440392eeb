"""`check` and `compile`: examine a space without a search, on a machine with or without the
device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from evotune.api.given_space import (
    AnyCases,
    AnySpace,
    SpaceKeywords,
    case_entries,
    space_file,
    trusting,
)
from evotune.runs.compiling import CompileRow, CompileSummary, compile_space
from evotune.runs.inspect import CheckReport, check_space

__all__ = ["SAMPLE", "CheckReport", "CompileRow", "CompileSummary", "check", "compile"]

SAMPLE = 16


def check(
    space: AnySpace,
    *,
    device: str = "auto",
    cases: AnyCases | None = None,
    trust: bool = False,
    **space_keywords: Unpack[SpaceKeywords],
) -> CheckReport:
    """Validates a space for a device and counts its configurations, without compiling anything. A
    GPU's name (l4, h100, …) needs no GPU.

    The report has `size.valid`, `parameters`, `cases`, and `constraints` with the number of
    configurations that each removes. `space`, `cases`, `trust` and the keywords are those of
    `tune`; `skipped` names the cases that no kernel can compute. Raises SpaceError or
    ProblemMistake for the first mistake.

    >>> import evotune
    >>> found = evotune.check("softmax-cpu")
    >>> found.name, found.size.valid, found.kernels[0].language
    ('softmax-cpu', 288, 'cpp')
    """
    with (
        trusting(trust),
        space_file(space, space_keywords, compile_only=True) as file,
    ):
        return check_space(file, device, case_entries(cases))


def compile(
    space: AnySpace,
    *,
    device: str = "auto",
    sample: int | None = SAMPLE,
    seed: int = 0,
    cases: AnyCases | None = None,
    trust: bool = False,
    on_row: Callable[[CompileRow, CompileSummary], object] | None = None,
    **space_keywords: Unpack[SpaceKeywords],
) -> CompileSummary:
    """Compiles `sample` random configurations of a space, or all when it is None, on all cores.

    No kernel is run, so a GPU's name (l4, h100, …) needs no GPU. The summary has the counts
    `tried`, `compiled` and `failed`, and `all_compile` and `reasons`. `on_row` gets each
    configuration's result as it finishes (outcome, resources, seconds), with the counts so far; the
    summary does not keep the results.

    The other arguments are those of `tune`. Raises UsageError for a recorded space.

    >>> import evotune
    >>> evotune.compile("softmax-cpu", sample=1).all_compile
    True
    """
    with (
        trusting(trust),
        space_file(space, space_keywords, compile_only=True) as file,
    ):
        return compile_space(
            file,
            device,
            sample=sample,
            seed=seed,
            on_row=on_row or (lambda row, summary: None),
            cases=case_entries(cases),
        )
