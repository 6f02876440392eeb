"""KernelBench's files: a task with `Model`, `get_inputs` and `get_init_inputs`, and a candidate
with `ModelNew`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.formats.describing import Request, describe
from evotune.formats.flashinfer_bench import read_text
from evotune.formats.foreign_reference import FLOATS
from evotune.formats.given import (
    CANDIDATE_FILE,
    MAKE,
    Given,
    python_text,
    require_agreement,
    usage,
    write_owned,
    write_problem,
)
from evotune.formats.task_problem import CASE, TaskCase
from evotune.packages import __version__
from evotune.space.objects import PythonCallable
from evotune.trial import Json, OutcomeKind

if TYPE_CHECKING:
    from evotune import Verdict

FORMAT = "kernelbench"
IMPORTS = ("from evotune.formats.task_problem import {base}, TaskCase, TaskTensor",)
_FOLDER = "candidate"
_CANDIDATE = f'''\
import torch
from evotune.formats.task_data import caller
from evotune.formats.task_problem import seeded_model, with_equal_weights
from kernelbench_candidate import ModelNew
from kernelbench_task import Model, get_init_inputs

CASES = {{cases!r}}


def {MAKE}(configuration, case):
    torch.set_grad_enabled(False)
    reference = seeded_model(Model, get_init_inputs)
    model = with_equal_weights(seeded_model(ModelNew, get_init_inputs), reference)
    placed = []

    def run(given):
        if not placed:
            placed.append(model.to(next(e.device for e in given if isinstance(e, torch.Tensor))))
        return model(*given)

    return caller(run, *CASES[case["{CASE}"] - 1])
'''


def load(candidate: Path, task: Path | None, folder: Path) -> Given:
    """`ModelNew` as a callable, and the task's `Model` as a problem. Raises UsageError, one line
    with the file, for a mistake."""
    if task is None:
        raise usage(candidate, "name the file with Model as the task")
    content, asked = read_text(candidate), read_text(task)
    own = python_text(candidate, content, ["ModelNew"])
    text = python_text(task, asked, ["Model", "get_inputs", "get_init_inputs"])
    require_agreement({candidate: content, task: asked})
    files = {task.name: text}
    (case,) = describe(Request("KernelBenchProblem", task.name, files, [{}]), folder)
    dtype = dtype_of([case])
    members: dict[str, object] = {
        "dtypes": (dtype,),
        "cases": (case,),
        "timed": 1,
        "reference_name": task.name,
        "reference_files": files,
    }
    base = "KernelBenchProblem"
    problem = write_problem(folder, base, [IMPORTS[0].format(base=base)], members, task.name)
    write_owned(
        folder / _FOLDER,
        {
            CANDIDATE_FILE: _CANDIDATE.format(cases=[case.passing]),
            "kernelbench_candidate.py": own,
            "kernelbench_task.py": text,
        },
    )
    return Given(
        PythonCallable(folder / _FOLDER / CANDIDATE_FILE, MAKE),
        {"root": folder, "problem": problem, "dtype": dtype, "shapes": [{CASE: 1}]},
        FORMAT,
    )


def dtype_of(cases: list[TaskCase]) -> str:
    """The problem's dtype: the first floating-point type among the inputs."""
    found = (each.dtype for case in cases for each in case.inputs if each.dtype in FLOATS)
    return next(found, "float32")


_NOT_COMPILED = {
    *(OutcomeKind.COMPILE_ERROR, OutcomeKind.COMPILE_CRASH, OutcomeKind.COMPILE_TIMEOUT),
    *(OutcomeKind.REJECTED, OutcomeKind.RESOURCE_LIMIT),
}


def result(verdict: Verdict) -> str:
    """KernelBench's result as JSON. Times are in microseconds, -1 if there is none. KernelBench has
    no word for an undecided verdict: it is not correct, and `metadata` says why."""
    outcome = verdict.outcome
    device = outcome.device_model or (outcome.domain.device if outcome.domain else "")
    metadata: dict[str, Json] = {
        "hardware": device,
        "judge": f"evotune {__version__}",
        "outcome": outcome.kind.value,
        "undecided": outcome.undecided,
        "speedup": verdict.speedup,
        "speedup_low": verdict.speedup_low,
        "speedup_high": verdict.speedup_high,
    }
    if outcome.reason:
        metadata["reason"] = outcome.reason
    found = [each for each in outcome.measurements if each.counts]
    times = [each.time_us for each in found] if verdict.passed else []
    baselines = [each.baseline_us for each in found] if verdict.passed else []
    record = {
        "compiled": outcome.kind not in _NOT_COMPILED,
        "correctness": verdict.passed,
        "metadata": metadata,
        "runtime": _mean(times),
        "runtime_stats": _stats(times, sum(each.samples for each in found)),
        "ref_runtime": _mean(baselines),
        "ref_runtime_stats": _stats(baselines, sum(each.samples for each in found)),
    }
    return json.dumps(record) + "\n"


def _mean(times: list[float]) -> float:
    return math.exp(sum(map(math.log, times)) / len(times)) if times else -1.0


def _stats(times: list[float], samples: int) -> dict[str, Json]:
    """The median of the samples, which stands for the mean; their spread is not kept."""
    return {"mean": _mean(times), "num_trials": samples} if times else {}
