"""The evaluators of OpenEvolve, ShinkaEvolve and evotoolkit, and the packages that call them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from evotune import formats
from evotune.formats import evaluators
from tests.formats import pretended_gate

GIVEN: Any = {"problem": "problem.py:Sum", "shapes": [{"rows": 8}], "seconds": 120}
SCORES = {"1.5": 1.35, "0.5": 0.45, "wrong": 0.0, "noisy": 0.0, "no kernel": 0.0}
FEEDBACK = {
    "1.5": "passed: 1.500 times as fast as torch:eager (95%: 1.350 to 1.650)",
    "0.5": "passed: 0.500 times as fast as torch:eager",
    "wrong": "refused: out is off by 3",
    "noisy": "undecided: the time limit of 120 s ended",
    "no kernel": "refused: kernel.py must have a function `make`",
}


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluators, "gate", pretended_gate.gate)
    monkeypatch.setattr(pretended_gate, "CALLS", [])


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return tmp_path / "kernel.py"


@pytest.mark.parametrize("text", SCORES)
def test_only_a_kernel_that_passed_scores_and_by_its_lower_bound(kernel: Path, text: str) -> None:
    kernel.write_text(text)
    evaluate = formats.shinka(**GIVEN, device="cpu", entry="f")
    metrics, correct, error = evaluate(str(kernel), str(kernel.parent / "results" / "1"))
    passed = SCORES[text] > 0
    assert metrics["combined_score"] == pytest.approx(SCORES[text])
    assert metrics["text_feedback"].startswith(FEEDBACK[text])
    assert metrics["public"]["passed"] == float(passed)
    assert metrics["public"]["undecided"] == float(text == "noisy")
    assert correct is passed
    assert (error is None) is passed
    folder = kernel.parent / "results" / "1"
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    assert json.loads((folder / "correct.json").read_text()) == {"correct": passed, "error": error}
    assert sorted(each.name for each in folder.iterdir()) == ["correct.json", "metrics.json"]
    (call,) = pretended_gate.CALLS
    assert call == {**GIVEN, "device": "cpu", "entry": "f", "trust": True}


def test_openevolve_gets_metrics_if_its_package_is_not_installed(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openevolve.evaluation_result", None)
    kernel.write_text("1.5")
    found = formats.openevolve(**GIVEN)(str(kernel))
    assert found["combined_score"] == found["speedup_low"] == pytest.approx(1.35)
    assert all(isinstance(value, float) for value in found.values())
    kernel.write_text("noisy")
    noisy = formats.openevolve(**GIVEN)(str(kernel))
    assert (noisy["combined_score"], noisy["undecided"], noisy["passed"]) == (0.0, 1.0, 0.0)


EVALUATOR = """
from tests.formats.pretended_gate import pretend

pretend()

import evotune.formats

evaluate = evotune.formats.NAME(problem="problem.py:Sum", shapes=[{"rows": 8}], seconds=120)
"""


def test_openevolve_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openevolve")
    from openevolve.config import EvaluatorConfig
    from openevolve.evaluator import Evaluator

    file = tmp_path / "evaluator.py"
    file.write_text(EVALUATOR.replace("NAME", "openevolve"))
    evaluator = Evaluator(EvaluatorConfig(), str(file))
    for text, score in SCORES.items():
        metrics = asyncio.run(evaluator.evaluate_program(text, text))
        assert metrics["combined_score"] == pytest.approx(score)
        artifacts = evaluator.get_pending_artifacts(text)
        assert artifacts["feedback"].startswith(FEEDBACK[text])


def test_shinka_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("shinka")
    from shinka.launch.scheduler import JobScheduler, LocalJobConfig

    file = tmp_path / "evaluate.py"
    file.write_text(EVALUATOR.replace("NAME", "shinka") + "\nevaluate.main()\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    scheduler = JobScheduler("local", LocalJobConfig(eval_program_path=str(file)))
    for number, (text, score) in enumerate(SCORES.items()):
        program, results = tmp_path / f"{number}.py", tmp_path / f"results-{number}"
        program.write_text(text)
        results.mkdir()
        found, _ = scheduler.run(str(program), str(results))
        assert found["metrics"]["combined_score"] == pytest.approx(score)
        assert found["metrics"]["text_feedback"].startswith(FEEDBACK[text])
        assert found["correct"]["correct"] is (score > 0)


def test_evotoolkit_itself(tmp_path: Path) -> None:
    pytest.importorskip("evotoolkit")
    from evotoolkit import Proposal, Runner, TaskSpec
    from evotoolkit.strategies import EvoEngineerStrategy

    texts = iter([*SCORES, "2.0"])

    class Proposer:
        name = "recorded"

        def propose(self, ctx: Any) -> list[Any]:
            files = {"kernel.py": next(texts), "parts/more.py": "A = 1"}
            return [Proposal(ctx.call_id, files)]

    spec = TaskSpec("sum", "Make it fast.", "python", "kernel.py")
    runner = Runner(
        evaluator=formats.evotoolkit(spec, **GIVEN),
        proposer=Proposer(),
        strategy=EvoEngineerStrategy(spec),
        output_dir=tmp_path / "run",
        budget=len(SCORES) + 1,
        propose_workers=1,
        eval_workers=1,
        verbose=False,
    )
    runner.run()
    assert runner.best_solution.evaluation.score == pytest.approx(1.8)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").open()]
    text = json.dumps(events)
    assert all(feedback.partition(" (")[0] in text for feedback in FEEDBACK.values())
    known = sorted(each.evaluation.score for each in runner.strategy.archive.solutions)
    assert known == pytest.approx([0.45, 1.35, 1.8])


@pytest.mark.parametrize("name", ["../kernel.py", "/tmp/kernel.py", "a/../../b.py"])
def test_a_file_outside_the_folder_is_refused(name: str) -> None:
    pytest.importorskip("evotoolkit")
    from evotoolkit import TaskSpec

    spec = TaskSpec("sum", "", "python", "kernel.py")
    evaluator = formats.evotoolkit(spec, **GIVEN)
    found = evaluator.evaluate({"kernel.py": "1.5", name: ""})
    assert (found.valid, found.score) == (False, 0.0)
    assert not evaluator.evaluate({"other.py": "1.5"}).valid
    assert pretended_gate.CALLS == []
