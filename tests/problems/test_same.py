"""Problems that judge outputs themselves: any right answer passes, and a `same` that looks at too
little is a mistake of the problem."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from evotune.backends.base.launch import LaunchPlan
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.errors import ProblemMistake
from evotune.problems import UserProblem, create_problem
from evotune.problems.examination import examine
from evotune.trial import ACCEPTED, OutcomeKind
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.kept_checks import worth_keeping
from evotune.verify.pool import InputPool
from evotune.workers.trial_timer import BaselineTimer

TEXT = """
from evotune.problems import Tensor, UserProblem

class Highest(UserProblem):
    sizes = ("rows", "columns")

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"value": (rows,), "place": Tensor((rows,), "int32", range(columns))}

    def operations(self, rows, columns):
        return rows * columns

    def compute(self, x):
        value, place = x.max(-1)
        return {"value": value, "place": place}

    def same(self, outputs, reference, inputs):
        place = outputs["place"].long()[:, None]
        at = inputs["x"].gather(1, place)[:, 0]
        return bool((at == outputs["value"]).all() and (at == reference["value"]).all())
"""
BODY = TEXT[TEXT.index("        place = outputs") :]
NO_RANGE = ('"int32", range(columns))', '"int32")')


def made(folder: Path, *changes: tuple[str, str]) -> UserProblem:
    text = TEXT
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (folder / "own.py").write_text(text)
    problem = create_problem("own.py:Highest", "float32", folder)
    assert isinstance(problem, UserProblem)
    return problem


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([(BODY, "        return True\n")], "same accepts any value: the result for other inputs"),
        (
            [(BODY, "        return bool((outputs['value'] == reference['value']).all())\n")],
            "same accepts any place: the result for other inputs",
        ),
        (
            [
                (BODY, "        is_first = outputs['place'][0] == reference['place'][0]\n"
                       "        equal = (outputs['value'] == reference['value']).all()\n"
                       "        return bool(is_first and equal)\n"),
                NO_RANGE,
            ],
            "same accepts place with an element that no kernel wrote: state the range of its value",
        ),
        ([(BODY, "        return False\n")], "same refuses what compute gives for normal inputs"),
        ([(BODY, "        return None\n")], "same gave None, expected True or False"),
        ([(BODY, "        return outputs['value'] == reference['value']\n")],
         "same gave a Tensor, expected True or False"),
        ([(BODY, "        inputs['x'].zero_()\n        return True\n")],
         "same changed its input x in place"),
        ([(BODY, "        return nothing\n")], "NameError: name 'nothing' is not defined"),
        (
            [("    def same(self, outputs, reference, inputs):\n" + BODY, "")],
            "place of outputs is an output, whose range only `same` needs",
        ),
    ],
)  # fmt: skip
def test_a_same_that_looks_at_too_little_is_one_line(
    tmp_path: Path, changes: list[tuple[str, str]], why: str
) -> None:
    problem = made(tmp_path, *changes)
    with pytest.raises(ProblemMistake, match=re.escape(why)) as caught:
        examine(problem, problem.case({"rows": 6, "columns": 20}, {}))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("own.py:")


def judged(problem: UserProblem, value: torch.Tensor | None, place: torch.Tensor | None) -> Verdict:
    """The verdict on a kernel that writes these outputs; None is not written. The inputs are rows
    of one number each, so that any place is right."""
    case = problem.case({"rows": 3, "columns": 5}, {})
    pool = InputPool(problem)
    gate, verdict = Gate(CpuSession(), problem, pool, deterministic=True), Verdict()

    def kernel() -> None:
        assert gate._latest is not None
        for name, values in (("value", value), ("place", place)):
            if values is not None:
                gate._latest.outputs()[name].copy_(values)

    gate.examine(Subject(case, LaunchPlan("f", (), (), ()), kernel), ["normal"], 0, verdict)
    return verdict


ONES = (
    'return {"x": (rows, columns)}',
    'return {"x": (rows, columns)}\n\n'
    "    def make_input(self, name, shape, kind, generator):\n"
    "        import torch\n"
    "        return torch.ones(shape)",
)


def test_any_right_answer_passes(tmp_path: Path) -> None:
    problem = made(tmp_path, ONES)
    for places in ([0, 0, 0], [4, 2, 0]):
        verdict = judged(problem, torch.ones(3), torch.tensor(places))
        assert verdict.passed, verdict.reason
        assert [check.detail for check in verdict.checks] == [ACCEPTED]


@pytest.mark.parametrize(
    ("value", "place", "kind", "why"),
    [
        (torch.ones(3), None, OutcomeKind.WRONG_RESULT,
         "place[0] is -1515870811, which is not of 0 to 4; 3 elements of place were never written"),
        (None, torch.zeros(3), OutcomeKind.NAN, "3 of them never written"),
        (torch.ones(3), torch.tensor([0, 5, 0]), OutcomeKind.WRONG_RESULT,
         "place[1] is 5, which is not of 0 to 4"),
        (torch.tensor([1.0, 1.0, 2.0]), torch.zeros(3), OutcomeKind.WRONG_RESULT,
         "same refuses the outputs; value[2] is 2, where compute gives 1"),
    ],
)  # fmt: skip
def test_other_answers_are_refused(
    tmp_path: Path, value: torch.Tensor, place: torch.Tensor, kind: OutcomeKind, why: str
) -> None:
    verdict = judged(made(tmp_path, ONES), value, place)
    assert (verdict.kind, why in verdict.reason) == (kind, True), verdict.reason


def test_an_exception_of_same_refuses_outputs_without_a_stated_range(tmp_path: Path) -> None:
    problem = made(tmp_path, ONES, NO_RANGE)
    verdict = judged(problem, torch.ones(3), torch.tensor([0, 5, 0]))
    assert verdict.kind is OutcomeKind.WRONG_RESULT
    assert "same raised an exception: own.py:2" in verdict.reason


def test_same_gets_sizes_and_inputs_as_compute_may(tmp_path: Path) -> None:
    body = "        assert inputs['rows'] == 3 and inputs['columns'] == 5\n"
    problem = made(tmp_path, ONES, (BODY, body + BODY))
    assert judged(problem, torch.ones(3), torch.zeros(3)).passed


def test_a_baseline_is_judged_alike(tmp_path: Path) -> None:
    last = "columns - 1 - x.flip(-1).argmax(-1)"
    own = (
        "\n    def baselines_of(self, x):\n"
        "        columns = x.shape[-1]\n"
        "        def last():\n"
        f"            return {{'value': x.amax(-1), 'place': ({last}).int()}}\n"
        "        def first():\n"
        "            return {'value': x.amax(-1), 'place': x.argmax(-1).int() * 0}\n"
        "        return {'torch:last': last, 'torch:first': first}\n"
    )
    problem = made(tmp_path, (BODY, BODY + own))
    case = problem.case({"rows": 40, "columns": 50}, {})
    found = BaselineTimer(CpuSession(), problem, InputPool(problem)).of_case(case, ())
    assert {each.name: each.passed for each in found} == {"torch:last": True, "torch:first": False}


def test_few_of_its_checks_are_kept(tmp_path: Path) -> None:
    problem = made(tmp_path, ONES)
    checks = [*judged(problem, torch.ones(3), torch.zeros(3)).checks] * 20
    assert len(worth_keeping(checks, {"(3,5)"})) == 1
