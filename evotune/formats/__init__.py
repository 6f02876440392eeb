"""The field's formats: files of FlashInfer-Bench, KernelBench and GPU MODE, for evotune's gate.

    given = load(candidate, task, detect(candidate, task), folder)
    verdict = evotune.gate(given.kernel, **given.keywords)
    print(result(given, verdict))

Nothing of a file is executed to detect its format.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.errors import UsageError
from evotune.formats.given import Given

if TYPE_CHECKING:
    from evotune import Verdict

__all__ = ["FORMATS", "Given", "detect", "load", "result"]

OWN = "evotune"
FORMATS = ("flashinfer-bench", "kernelbench", "gpumode")


def detect(candidate: Path, task: Path | None) -> str:
    """The format of a candidate's file: one of FORMATS, or "evotune" for anything else. Raises
    UsageError if the file cannot be read."""
    from evotune.formats.flashinfer_bench import bound_names, read_text

    if task is not None and (task.name == "task.yml" or (task / "task.yml").is_file()):
        return "gpumode"
    if candidate.suffix == ".json":
        return "flashinfer-bench"
    if candidate.suffix != ".py":
        return OWN
    try:
        names = bound_names(ast.parse(read_text(candidate)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return OWN
    if "ModelNew" in names:
        return "kernelbench"
    return "gpumode" if "custom_kernel" in names else OWN


def load(candidate: Path, task: Path | None, format: str, folder: Path) -> Given:
    """The kernel and the problem of a candidate's file and its task's. What is generated is written
    into `folder`, and must stay there while the gate works.

    Raises UsageError, one line with the file and the field, for a mistake, for what is not
    supported, and if the user does not agree to execute the files.
    """
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
    KernelBench's result as JSON, GPU MODE's log."""
    from evotune.formats import flashinfer_solutions, gpumode, kernelbench

    if given.format == flashinfer_solutions.FORMAT:
        return flashinfer_solutions.result(given.origin, verdict)
    if given.format == kernelbench.FORMAT:
        return kernelbench.result(verdict)
    if given.format == gpumode.FORMAT:
        return gpumode.result(given.origin, verdict)
    raise UsageError(f"unknown format {given.format!r}; known: {', '.join(FORMATS)}")
