"""Evaluators for programs that evolve code: OpenEvolve, ShinkaEvolve and evotoolkit.

Each judges the proposed file by `evotune.gate`. A kernel that passed has the lower bound of its
speedup's 95% interval as its score. A refused or undecided kernel has the score 0, with the reason
as feedback; the metrics say which of the two. So noise never makes a candidate look good.

An evaluator executes what the program proposes without asking, in processes of its own, with your
rights.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Unpack

from evotune.api.gating import Verdict, gate
from evotune.api.given_space import SpaceKeywords
from evotune.errors import SpaceError, UsageError
from evotune.trial import Json
from evotune.util.files import scratch_folder, whole_file


@dataclasses.dataclass(frozen=True)
class Judged:
    """A verdict as a score: `score` is 0 unless the kernel passed; `feedback` is for the proposer.
    `record` is the verdict's JSON; empty if the file could not be read as a kernel."""

    verdict: str
    score: float
    feedback: str
    record: Mapping[str, Json]

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    @property
    def metrics(self) -> dict[str, float]:
        """The figures that are known, as numbers."""
        names = ("speedup", "speedup_low", "speedup_high", "time_us")
        figures = {name: self.record.get(name) for name in names}
        known = {name: float(value) for name, value in figures.items() if value is not None}
        return {
            "passed": float(self.passed),
            "undecided": float(self.verdict == "undecided"),
            **known,
        }


@dataclasses.dataclass(frozen=True)
class _Judge:
    """Judges files. `seconds`, `entry`, `device` and `keywords`: see `evotune.gate`."""

    seconds: float | None
    entry: str | None
    device: str
    keywords: SpaceKeywords

    def judge(self, path: Path) -> Judged:
        try:
            found = gate(
                path,
                seconds=self.seconds,
                entry=self.entry,
                device=self.device,
                trust=True,
                **self.keywords,
            )
        except (UsageError, SpaceError) as error:  # the file is no kernel of this problem
            return Judged("refused", 0.0, f"refused: {error}", {})
        return _judged(found)


def _judged(found: Verdict) -> Judged:
    record = found.to_json()
    low = found.speedup_low
    if found.passed and low is not None and math.isfinite(low):
        return Judged("passed", low, str(found), record)
    return Judged("undecided" if found.passed else found.verdict, 0.0, str(found), record)


# OpenEvolve


@dataclasses.dataclass(frozen=True)
class OpenEvolveEvaluator:
    """The function `evaluate(program_path)` of an evaluator's file."""

    _judge: _Judge

    def __call__(self, program_path: str) -> Any:
        judged = self._judge.judge(Path(program_path))
        metrics = {"combined_score": judged.score, **judged.metrics}
        artifacts = {"verdict": judged.verdict, "feedback": judged.feedback}
        try:
            results = importlib.import_module("openevolve.evaluation_result")
        except ImportError:
            return metrics
        return results.EvaluationResult(metrics=metrics, artifacts=artifacts)


def openevolve(
    *,
    seconds: float | None = None,
    entry: str | None = None,
    device: str = "auto",
    **space_keywords: Unpack[SpaceKeywords],
) -> OpenEvolveEvaluator:
    """The function `evaluate` for OpenEvolve's evaluator file. `combined_score` is the score.

    Returns OpenEvolve's `EvaluationResult` with the feedback among its artifacts, or the metrics
    alone if the package is not installed. The arguments are those of `evotune.gate`; keep `seconds`
    below `evaluator.timeout` of OpenEvolve's configuration.

    >>> import evotune.formats
    >>> evaluate = evotune.formats.openevolve(
    ...     problem="problem.py:Softmax", shapes=[{"rows": 256, "columns": 1000}], seconds=120
    ... )
    """
    return OpenEvolveEvaluator(_Judge(seconds, entry, device, space_keywords))


# ShinkaEvolve


@dataclasses.dataclass(frozen=True)
class ShinkaEvaluator:
    """The evaluation of one program, as a call or as the program `evaluate.py`."""

    _judge: _Judge

    def __call__(
        self, program_path: str, results_dir: str
    ) -> tuple[dict[str, Json], bool, str | None]:
        """Writes `metrics.json` and `correct.json` into the folder. Returns (metrics, correct,
        error), as ShinkaEvolve's `run_shinka_eval` does."""
        judged = self._judge.judge(Path(program_path))
        metrics: dict[str, Json] = {
            "combined_score": judged.score,
            "public": judged.metrics,
            "private": {},
            "text_feedback": judged.feedback,
        }
        error = None if judged.passed else judged.feedback
        folder = Path(results_dir)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "metrics.json", metrics)
        _write(folder / "correct.json", {"correct": judged.passed, "error": error})
        return metrics, judged.passed, error

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Evaluates the program that the command line names."""
        parser = argparse.ArgumentParser(description="Judges a kernel for ShinkaEvolve.")
        parser.add_argument("--program_path", required=True)
        parser.add_argument("--results_dir", required=True)
        given, _ = parser.parse_known_args(arguments)
        self(given.program_path, given.results_dir)


def _write(path: Path, value: Json) -> None:
    with whole_file(path) as file:
        file.write(json.dumps(value, indent=2).encode())


def shinka(
    *,
    seconds: float | None = None,
    entry: str | None = None,
    device: str = "auto",
    **space_keywords: Unpack[SpaceKeywords],
) -> ShinkaEvaluator:
    """The evaluation for ShinkaEvolve's `evaluate.py`, which ends with `evaluate.main()`.

    Use it in place of `run_shinka_eval`, which executes the program in the process that judges it.
    A kernel that did not pass is not `correct`. The arguments are those of `evotune.gate`.

    >>> import evotune.formats
    >>> evaluate = evotune.formats.shinka(
    ...     problem="problem.py:Softmax", shapes=[{"rows": 256, "columns": 1000}], seconds=120
    ... )
    """
    return ShinkaEvaluator(_Judge(seconds, entry, device, space_keywords))


# evotoolkit


@dataclasses.dataclass(frozen=True)
class EvotoolkitEvaluator:
    """evotoolkit's `Evaluator`: `spec`, and `evaluate` of a set of files."""

    spec: Any
    _judge: _Judge

    def evaluate(self, files: Mapping[str, str]) -> Any:
        """evotoolkit's `EvaluationResult` for `spec.main_file`, with the other files beside it."""
        types = importlib.import_module("evotoolkit.core.types")
        main = str(self.spec.main_file)
        if main not in files:
            judged = Judged("refused", 0.0, f"refused: there is no file {main}", {})
        elif unsafe := [name for name in files if not _is_inside(name)]:
            judged = Judged("refused", 0.0, f"refused: a file is named {unsafe[0]!r}", {})
        else:
            with scratch_folder() as folder:
                for name, text in files.items():
                    path = folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text, encoding="utf-8")
                judged = self._judge.judge(folder / main)
        return types.EvaluationResult(
            valid=judged.passed,
            score=judged.score,
            feedback=judged.feedback,
            metrics=judged.metrics,
        )


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def evotoolkit(
    spec: Any,
    *,
    seconds: float | None = None,
    entry: str | None = None,
    device: str = "auto",
    **space_keywords: Unpack[SpaceKeywords],
) -> EvotoolkitEvaluator:
    """The evaluator for evotoolkit's `Runner`. `spec` is its `TaskSpec`, whose `main_file` is the
    kernel's file. The arguments are those of `evotune.gate`.

    A kernel that did not pass is not valid. Pass `eval_workers=1` to the `Runner`: kernels that are
    timed at the same time disturb each other.
    """
    return EvotoolkitEvaluator(spec, _Judge(seconds, entry, device, space_keywords))
