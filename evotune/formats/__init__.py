"""Kernels and tasks in the formats of files, for evotune's gate: FlashInfer-Bench, KernelBench, GPU
MODE and evotune's own.

    given = load(candidate, task, detect(candidate, task), folder)
    verdict = evotune.gate(given.kernel, **given.keywords)
    print(result(given, verdict))

Nothing of a file is executed to detect its format. `openevolve`, `shinka` and `evotoolkit` give the
evaluators that those programs call.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.errors import UsageError

if TYPE_CHECKING:
    from evotune.api.gating import Verdict
    from evotune.formats.evaluators import evotoolkit, openevolve, shinka
    from evotune.formats.given import Given

__all__ = [
    "EVOTUNE",
    "FORMATS",
    "Given",
    "detect",
    "evotoolkit",
    "load",
    "openevolve",
    "result",
    "shinka",
]

EVOTUNE = "evotune"
FORMATS = (EVOTUNE, "flashinfer-bench", "kernelbench", "gpumode")
_EVALUATORS = ("openevolve", "shinka", "evotoolkit")


def detect(candidate: Path, task: Path | None) -> str:
    """The format of a candidate's file: one of FORMATS, and EVOTUNE for a file of no other one.
    Raises UsageError if the file cannot be read."""
    from evotune.formats.flashinfer_bench import bound_names, read_text

    if task is not None and (task.name == "task.yml" or (task / "task.yml").is_file()):
        return "gpumode"
    if candidate.suffix == ".json":
        return "flashinfer-bench"
    if candidate.suffix != ".py":
        return EVOTUNE
    try:
        names = bound_names(ast.parse(read_text(candidate)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return EVOTUNE
    if "ModelNew" in names:
        return "kernelbench"
    return "gpumode" if "custom_kernel" in names else EVOTUNE


def load(candidate: Path, task: Path | None, format: str, folder: Path) -> Given:
    """The kernel and the problem of a candidate's file and its task's. What is generated is written
    into `folder`, and must stay there while the gate works.

    Raises UsageError, one line with the file and the field, for a mistake, for what is not
    supported, and if the user does not agree to execute the files. Raises SpaceError for a mistake
    in a space.
    """
    if format == EVOTUNE:
        from evotune.formats import own

        return own.load(candidate, task)
    from evotune.formats import flashinfer_solutions, gpumode, kernelbench

    loaders = {
        flashinfer_solutions.FORMAT: flashinfer_solutions.load,
        kernelbench.FORMAT: kernelbench.load,
        gpumode.FORMAT: gpumode.load,
    }
    if format not in loaders:
        raise UsageError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    return loaders[format](candidate, task, folder)


def result(given: Given, verdict: Verdict) -> str:
    """The verdict in the format's own words: FlashInfer-Bench's traces as lines of JSON,
    KernelBench's result as JSON, GPU MODE's log. In evotune's format it is the verdict's JSON."""
    if given.format == EVOTUNE:
        from evotune.report.formats import to_json

        return to_json(verdict.to_json())
    from evotune.formats import flashinfer_solutions, gpumode, kernelbench

    if given.format == flashinfer_solutions.FORMAT:
        return flashinfer_solutions.result(given.origin, verdict)
    if given.format == kernelbench.FORMAT:
        return kernelbench.result(verdict)
    if given.format == gpumode.FORMAT:
        return gpumode.result(given.origin, verdict)
    raise UsageError(f"unknown format {given.format!r}; known: {', '.join(FORMATS)}")


def __getattr__(name: str) -> object:
    if name == "Given":
        from evotune.formats.given import Given

        return Given
    if name in _EVALUATORS:
        from evotune.formats import evaluators

        return getattr(evaluators, name)
    raise AttributeError(f"module 'evotune.formats' has no attribute {name!r}")
