"""A champion's inputs and references are made while its code is compiled."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile
from evotune.errors import ProblemMistake
from evotune.problems import create_problem
from evotune.trial import Outcome
from evotune.workers.device_slot import DeviceSlot, ProblemSource
from evotune.workers.executor import TIMED
from evotune.workers.messages import Answer, BaselinesRequest, BaselinesTimed, PrepareRequest
from tests.patience import PATIENCE_S

TEXT = """
import pathlib
from evotune import Problem
class Doubled(Problem):
    sizes = ("columns",)
    def inputs(self, columns):
        return {"x": (columns,)}
    def outputs(self, columns):
        return {"out": (columns,)}
    def operations(self, columns):
        return columns
    def compute(self, x):
        with pathlib.Path(__file__).with_name("made").open("a") as made:
            made.write("x")
        {first}
        return {"out": 2.0 * x}
"""


def answer_after_preparing(folder: Path, first: str = "") -> Answer | Outcome:
    """The worker's answer to a request that comes when it has begun to prepare a champion."""
    (folder / "problem.py").write_text(TEXT.replace("{first}", first))
    name, until = "problem.py:Doubled", time.monotonic() + PATIENCE_S
    case = create_problem(name, "float32", folder).case({"columns": 8}, {})
    profile = DeviceProfile("cpu", "cpu", "", {"threads": 1})
    source = ProblemSource(name, "float32", folder)
    slot = DeviceSlot(folder, profile, source, deterministic=True)

    def turn() -> Answer | Outcome | None:
        assert time.monotonic() < until
        time.sleep(0.01)
        return slot.handle() if slot.child is not None else None

    try:
        slot.refresh(PrepareRequest(number=3, cases=((case, TIMED),)))
        while not (folder / "made").exists():
            turn()
        slot.start(BaselinesRequest(cases=(case,)))
        while (answer := turn()) is None:
            pass
        return answer
    finally:
        slot.close()


def test_a_worker_prepares_ahead_of_the_request(tmp_path: Path) -> None:
    assert isinstance(answer_after_preparing(tmp_path), BaselinesTimed)


def test_a_mistake_while_it_prepares_is_told_when_the_request_meets_it(tmp_path: Path) -> None:
    with pytest.raises(ProblemMistake, match=r"called sys\.exit"):
        answer_after_preparing(tmp_path, "raise SystemExit(3)")
    logs = "".join(path.read_text() for path in tmp_path.glob("device*"))
    assert "preparing a champion failed: ProblemMistake" in logs


@pytest.mark.soak
def test_three_more_workers_wait_while_a_champion_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A champion's processes follow each other sooner than a worker has imported PyTorch."""
    monkeypatch.setattr(registry.named("cpu"), "spare_worker", True)
    assert isinstance(answer_after_preparing(tmp_path), BaselinesTimed)
    assert len(list(tmp_path.glob("device*.log"))) == 4
