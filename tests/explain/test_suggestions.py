"""Suggestions from a space: untried neighbours, and constraints that bind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from report.runs import make_run

from evotune.explain.assembling import SpaceView, explain_data
from evotune.explain.explanation import Explanation
from evotune.explain.findings import Effect, Limiter, Suggestion, Unit
from evotune.explain.limiter_rules import Case
from evotune.explain.predicting import LaunchFigures, Predictor, table_of
from evotune.explain.subjects import read_run
from evotune.explain.suggestions import (
    is_worth_a_line,
    measured_already,
    moved_figure,
    techniques_of,
)
from evotune.search.gaussian_process import Difference
from evotune.space.bound import BoundSpace, bind
from evotune.space.document import parse_space
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial, Value

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


def nothing(configuration: Configuration) -> LaunchFigures:
    """As of a configuration that cannot run, and nearly so of each on a CPU."""
    return {}


def explained(
    tmp_path: Path,
    tried: list[dict[str, Value]],
    constraint: str,
    *,
    cause: str = "latency",
    known: Callable[[Configuration], LaunchFigures] = figures,
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
    view = SpaceView(space(constraint), lambda configuration, label: WORK, known)
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


def test_a_value_with_which_every_trial_failed_is_not_suggested(tmp_path: Path) -> None:
    tried = [c for c in all_configurations() if c["STAGES"] != 5 or not c["PAD"]]
    found = explained(tmp_path, tried, "STAGES < 9")
    assert all(s.configuration is None or s.configuration["STAGES"] != 5 for s in found.next)


def test_a_constraint_that_keeps_a_better_value_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sure(self: Predictor, start: Trial, changed: list[object]) -> list[Difference]:
        return [Difference(0.1, 0.02) for _ in changed]

    monkeypatch.setattr(Predictor, "gains", sure)
    tried = [
        c
        for c in all_configurations()
        if c["STAGES"] != 5 and not (c["BLOCK"] == 64 and c["STAGES"] == 4)
    ]
    found = explained(tmp_path, tried, "BLOCK != 64 or STAGES < 4")
    item = next(s for s in found.next if s.kind == "constraint")
    assert item.text == "STAGES=4"
    assert "only the constraint `BLOCK != 64 or STAGES < 4 (a guess)` forbids it" in item.rule
    hopeless = [value.text for value in found.over_space.hopeless]
    assert not any(text.startswith("STAGES=4") for text in hopeless)
    assert CASE in str(found)


def test_only_a_sure_gain_is_worth_a_line() -> None:
    assert is_worth_a_line(Difference(0.05, 0.025))
    assert not is_worth_a_line(Difference(0.05, 0.03))  # the 95% interval holds 0
    assert not is_worth_a_line(Difference(0.001, 0.0001))


def test_a_gain_counts_from_the_measured_speed_of_the_champion() -> None:
    """The champion was picked for its speed, so the model, which sees its neighbours too, expects
    less of it. Neighbours of which it expects more than that are not faster for it."""
    rng = random.Random(1)
    configurations = [Configuration({"A": a, "B": b}) for a in range(6) for b in range(6)]
    del configurations[14]
    trials = [
        Trial(number, one, Outcome(OutcomeKind.OK, 0.1 * one["A"] + rng.gauss(0, 0.05)))
        for number, one in enumerate(configurations)
    ]
    lucky = trials[32]
    trials[32] = Trial(32, lucky.configuration, Outcome(OutcomeKind.OK, 0.9))
    predictor = Predictor(table_of(trials))
    near = [{**lucky.configuration, "A": 2, "B": 2}, {**lucky.configuration, "B": 0}]
    for by_model, gain in zip(
        predictor.changes(lucky.configuration, near),
        predictor.gains(trials[32], near),
        strict=True,
    ):
        assert by_model is not None
        assert gain is not None
        assert gain.mean < by_model.mean - 0.1
        assert gain.deviation > by_model.deviation
    slow = Trial(40, configurations[0], Outcome(OutcomeKind.OK, -0.9))
    (by_model,) = predictor.changes(slow.configuration, near[:1])
    (gain,) = predictor.gains(slow, near[:1])
    assert by_model is not None
    assert gain is not None
    assert gain.mean == pytest.approx(by_model.mean)  # it was not picked for its speed


def test_where_no_figure_of_launches_is_known_the_model_decides_alone(tmp_path: Path) -> None:
    """A CPU's kernels have no launches whose figures could move against latency."""
    best: dict[str, Value] = {"PAD": True, "STAGES": 4, "BLOCK": 64}
    tried = [c for c in all_configurations() if c != best and c["STAGES"] != 5]
    found = explained(tmp_path, tried, "STAGES < 5", known=nothing)
    item = next(s for s in found.next if s.kind == "configuration")
    assert item.configuration == best
    assert item.rule.startswith("the run has not tried it")


def test_a_configuration_without_figures_moves_none() -> None:
    def known(configuration: Configuration) -> LaunchFigures:
        return {"idle": 0.4, "blocks": 66.0} if configuration["PAD"] else {}

    sources = SimpleNamespace(
        limiter=SimpleNamespace(name="grid"),
        launch_figures=known,
        champion=SimpleNamespace(configuration=Configuration({"PAD": True})),
    )
    assert moved_figure(sources, Configuration({"PAD": False})) == ""  # type: ignore[arg-type]


def techniques(name: str, attributes: dict[str, Value]) -> list[str]:
    """The techniques against a limiter on a device with these attributes."""
    units = {
        "launch": Unit(
            name="launch", unit="launches/s", rate=1e6, work=1.0, share=0.5, kind="measured"
        ),
        "tensor cores": Unit(
            name="tensor cores", unit="FLOP/s", rate=1e15, work=1e9, share=0.8, kind="measured"
        ),
        "L2": Unit(name="L2", unit="bytes/s", rate=1e12, work=1e6, share=0.8, kind="measured"),
    }
    roofline = SimpleNamespace(units=(units[name],))
    limiter = Limiter(name=name, share=units[name].share, rule="", evidence=())
    case = Case(roofline, None, attributes)  # type: ignore[arg-type]
    return [item.text for item in techniques_of(limiter, case)]


@pytest.mark.parametrize(
    ("name", "attributes", "words"),
    [
        ("launch", {"multiprocessors": 132, "arch": 90}, "programmatic dependent launch"),
        ("launch", {"multiprocessors": 108, "arch": 80}, ""),
        ("launch", {"threads": 2}, "fewer threads"),
        ("tensor cores", {"multiprocessors": 58, "arch": 89}, "FP8"),
        ("tensor cores", {"multiprocessors": 108, "arch": 80}, ""),
        ("L2", {"multiprocessors": 132, "arch": 90}, "clusters"),
        ("L2", {"multiprocessors": 58, "arch": 89}, "two blocks (larger tiles)"),
        ("L2", {"threads": 2}, "a core's own cache"),
    ],
)
def test_a_technique_is_one_that_the_device_has(
    name: str, attributes: dict[str, Value], words: str
) -> None:
    found = techniques(name, attributes)
    assert [words in text for text in found] == ([True] if words else [])


def ladder(
    tmp_path: Path,
    values: list[int],
    domain: list[int] | str | None,
    constraint: str = "STAGES > 0",
) -> list[Suggestion]:
    """Suggestions of values beyond the space, after a run in which more was always faster."""
    outcomes = [
        Outcome(OutcomeKind.OK, 0.2 * n, 0.2 * n - 0.01, 0.2 * n + 0.01) for n in range(len(values))
    ]
    tried = {n: {"STAGES": value} for n, value in enumerate(values)}
    run = make_run(tmp_path / "runs", outcomes, configurations=tried)
    view = None
    if domain is not None:
        lines = SPACE.replace("  PAD: [false, true]\n", "").replace("  BLOCK: [32, 64, 128]\n", "")
        lines = lines.replace("[1, 2, 4, 5]", str(domain)).replace("CONSTRAINT", constraint)
        document = parse_space(lines, Path("planted.yaml"))
        symbols: dict[str, Value] = {"batch": 1, "heads": 1, "seq_len": 64, "head_dim": 8}
        bound = bind(document, [symbols], {})
        view = SpaceView(bound, lambda configuration, label: None, nothing)
    return [s for s in explain_data(read_run(run), view=view).next if s.kind == "space"]


def test_a_value_beyond_the_space_is_suggested_where_its_end_was_tried(tmp_path: Path) -> None:
    (item,) = ladder(tmp_path, [1, 2, 4, 8], [1, 2, 4, 8])
    assert item.text == "STAGES=16"
    assert item.rule.startswith("8 is the greatest value of the space, and the step to it from 4")


@pytest.mark.parametrize(("most", "suggested"), [(1024, 1), (1023, 0)])
def test_no_value_is_suggested_that_a_constraint_forbids(
    tmp_path: Path, most: int, suggested: int
) -> None:
    """As where 16 warps are the space's most, and twice as many are more than a block may have."""
    found = ladder(tmp_path, [1, 2, 4, 8], [1, 2, 4, 8], f"64 * STAGES <= {most}")
    assert len(found) == suggested


def test_the_end_of_what_was_tried_is_not_the_end_of_a_large_space(tmp_path: Path) -> None:
    assert not ladder(tmp_path, [10, 20, 30, 40], "{range: [1, 1000]}")


def test_without_the_space_only_the_tried_values_are_known(tmp_path: Path) -> None:
    (item,) = ladder(tmp_path, [1, 2, 4, 8], None)
    assert item.text == "STAGES=16"
    assert item.rule.startswith("8 is the greatest value that was tried, and the step to it from 4")


def test_a_large_value_is_written_out(tmp_path: Path) -> None:
    (item,) = ladder(tmp_path, [1 << 17, 1 << 18, 1 << 19], None)
    assert item.text == "STAGES=1048576"


def test_a_change_that_was_measured_to_win_is_suggested_first() -> None:
    def effect(value: int, worth: float, **changes: object) -> Effect:
        made = Effect(
            parameter="BLOCK", source=value, to=64, worth=worth, low=worth * 0.98,
            high=worth * 1.01, basis="paired",
        )  # fmt: skip
        return msgspec.structs.replace(made, **changes)

    effects = [
        effect(32, 0.9, also={"STAGES": 2}),
        effect(128, 0.995),  # its interval holds 1
        effect(16, 0.985, high=0.999),  # of many changes some have such an interval by chance
        effect(8, 0.97, low=0.96, high=0.995),  # processes differ by as much
        effect(256, 0.9, same_code=True),
        effect(512, 0.9, basis="model"),
    ]
    champion = SimpleNamespace(configuration=Configuration({"BLOCK": 64, "STAGES": 4}))
    sources = SimpleNamespace(effects=effects, champion=champion)
    (item,) = measured_already(sources)  # type: ignore[arg-type]
    assert item.text == "BLOCK=32 STAGES=2"
    assert item.configuration == {"BLOCK": 32, "STAGES": 2}
    assert (item.estimate, item.low, item.high) == pytest.approx((1.111, 1.100, 1.134), abs=0.001)
