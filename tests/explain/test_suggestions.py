"""Suggestions from a space: untried neighbours, and constraints that bind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from report.runs import make_run

from evotune.explain._sides import read_run
from evotune.explain._suggestions import _configuration
from evotune.explain.assembling import SpaceView, explain_data
from evotune.explain.explanation import Explanation
from evotune.explain.predicting import LaunchFigures
from evotune.search.trial_model import Difference
from evotune.space.binding import bind
from evotune.space.bound import BoundSpace
from evotune.space.document import parse_space
from evotune.trial import Configuration, Value

from .planted import CASE, DEVICE, WORK, all_configurations, gathered, launch, outcome

SPACE = """
name: planted
root: .
problem: {name: attention, dtype: float32, shapes: [{batch: 1, heads: 1, seq_len: 64, head_dim: 8}]}
kernels: {k: {source: k.cpp, entry: k, arguments: [q, k, v, out]}}
parameters:
  PAD: [false, true]
  STAGES: [1, 2, 4, 5]
  BLOCK: [32, 64, 128]
constraints:
  - {expr: CONSTRAINT, reason: a guess}
"""


def space(constraint: str) -> BoundSpace:
    document = parse_space(SPACE.replace("CONSTRAINT", constraint), Path("planted.yaml"))
    symbols: dict[str, Value] = {"batch": 1, "heads": 1, "seq_len": 64, "head_dim": 8}
    return bind(document, [symbols], {})


def figures(configuration: Configuration) -> LaunchFigures:
    """More stages keep more bytes in flight."""
    stages = float(configuration["STAGES"])
    return {"launches": 1.0, "bytes_in_flight": 100 * stages, "blocks": 128.0, "idle": 0.0}


def explained(
    tmp_path: Path, tried: list[dict[str, Value]], constraint: str, *, cause: str = "latency"
) -> Explanation:
    best = max((c for c in tried if outcome(c).ok), key=lambda c: outcome(c).fitness or 0)
    stalls = {"long_scoreboard": 4.0} if cause == "latency" else None
    item = gathered(launch(stalls=stalls), **best)
    run = make_run(
        tmp_path / "runs",
        [outcome(c) for c in tried],
        configurations=dict(enumerate(tried)),
        meta={"device": DEVICE, "evidence": [item.to_json()], "problem": {"name": "attention"}},
    )
    view = SpaceView(space(constraint), lambda configuration, label: WORK, figures)
    return explain_data(read_run(run), view=view)


def test_an_untried_neighbour_that_moves_the_right_figure_is_suggested(tmp_path: Path) -> None:
    """The search did not come to the best configuration; latency asks for more bytes in flight."""
    best: dict[str, Value] = {"PAD": True, "STAGES": 4, "BLOCK": 64}
    tried = [c for c in all_configurations() if c != best and c["STAGES"] != 5]
    found = explained(tmp_path, tried, "STAGES < 5")
    assert found.limiter.name.startswith("latency")
    item = next(s for s in found.next if s.kind == "configuration")
    assert item.configuration == best
    assert "more shared memory a thread for data in flight (200 to 400)" in item.rule
    assert item.low is not None
    assert item.low < item.estimate == pytest.approx(1.1, abs=0.1)


@pytest.mark.parametrize(("deviation", "unsure"), [(0.2, True), (0.05, False)])
def test_a_gain_that_the_model_is_not_sure_of_says_so(deviation: float, unsure: bool) -> None:
    champion = SimpleNamespace(configuration={"PAD": False})
    made = _configuration(
        SimpleNamespace(champion=champion),  # type: ignore[arg-type]
        Configuration({"PAD": True}),
        Difference(0.2, deviation),
        "",
    )
    assert made.rule.endswith("but is not sure: the interval holds 1") == unsure


def test_a_value_with_which_every_trial_failed_is_not_suggested(tmp_path: Path) -> None:
    tried = [c for c in all_configurations() if c["STAGES"] != 5 or not c["PAD"]]
    found = explained(tmp_path, tried, "STAGES < 9")
    assert all(s.configuration is None or s.configuration["STAGES"] != 5 for s in found.next)


def test_a_constraint_that_keeps_a_better_value_out_is_named(tmp_path: Path) -> None:
    tried = [
        c for c in all_configurations() if c["STAGES"] != 5 and not (c["PAD"] and c["STAGES"] == 4)
    ]
    found = explained(tmp_path, tried, "not PAD or STAGES < 4")
    item = next(s for s in found.next if s.kind == "constraint")
    assert item.text == "STAGES=4"
    assert "only the constraint `not PAD or STAGES < 4 (a guess)` forbids it" in item.rule
    hopeless = [value.text for value in found.over_space.hopeless]
    assert not any(text.startswith("STAGES=4") for text in hopeless)
    assert CASE in str(found)
