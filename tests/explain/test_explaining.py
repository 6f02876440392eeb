"""Explanations of made-up runs: effects, what never had a chance, cliffs, the other side, JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import jsonschema
import msgspec
import pytest
from report.runs import make_run, ok, recorded

from evotune.api.run import Run
from evotune.backends.base.evidence import Ceilings
from evotune.errors import EvotuneError, StoreError, UsageError
from evotune.explain import explaining, limiter_rules, report_parts, subjects
from evotune.explain.assembling import TrialStudy, explain_data
from evotune.explain.explaining import ExplainRequest, Gathering, explain_run
from evotune.explain.explanation import Explanation, html_page_of
from evotune.explain.explanation_text import against_line, shown_effects
from evotune.explain.findings import Effect, Pair, Suggestion
from evotune.explain.measured_pairs import pairs_to_measure, with_measurements
from evotune.explain.sentences import limiter_words
from evotune.explain.subjects import chosen_subject, machine_on, read_run, side_of
from evotune.explain.suggestions import with_tries
from evotune.runs.ablation import AblationRow, Change
from evotune.runs.folder import RunFolder
from evotune.store import RunStore
from evotune.store.facts import Ablation
from evotune.store.opening import newest_version
from evotune.trial import Configuration, Outcome, OutcomeKind, Value

from .planted import (
    CASE,
    CEILINGS,
    WORK,
    all_configurations,
    gathered,
    launch,
    number_of,
    outcome,
    planted_run,
)

QUIET = ExplainRequest(measure=False)


def explained(tmp_path: Path, *evidence: object, number: int | None = None) -> Explanation:
    run = planted_run(tmp_path / "runs", *evidence)  # type: ignore[arg-type]
    return explain_data(read_run(run), number)


def effect(found: Explanation, name: str, other: object) -> Effect:
    return next(e for e in found.effects if e.parameter == name and e.source == other)


def test_the_worth_of_a_choice_is_the_time_without_it(tmp_path: Path) -> None:
    found = explained(tmp_path)
    assert found.configuration == {"PAD": True, "STAGES": 4, "BLOCK": 64}
    pad = effect(found, "PAD", False)
    assert pad.worth == pytest.approx(2.0)
    assert pad.basis == "trials"
    assert pad.low is not None
    assert pad.low < 2.0 < (pad.high or 0)
    assert [e.parameter for e in found.effects if e.worth][:3] == ["PAD", "BLOCK", "STAGES"]
    failed = effect(found, "STAGES", 5)
    assert (failed.worth, failed.outcome) == (None, "resource_limit")


def test_a_value_without_a_chance_is_named_with_its_outcome(tmp_path: Path) -> None:
    (value,) = explained(tmp_path).over_space.hopeless
    assert value.text == (
        "STAGES=5: 6 trials, all resource_limit: 262144 bytes of shared memory (0 of them "
        "static), but a block may have 232448"
    )


def test_a_cliff_is_named_with_the_number_that_crosses(tmp_path: Path) -> None:
    cliffs = {cliff.figure: cliff for cliff in explained(tmp_path).over_space.cliffs}
    spills = cliffs["spill_bytes"]
    assert (spills.parameter, spills.before, spills.after) == ("BLOCK", 64, 128)
    assert spills.text.endswith("1.60 times as long, spills 0 to 96 bytes")
    assert set(cliffs) == {"spill_bytes"}  # blocks fall with STAGES, which makes nothing slower


def test_blocks_that_no_longer_fit_are_a_cliff(tmp_path: Path) -> None:
    from .planted import DEVICE, outcome

    configurations = {n: {"STAGES": n + 1} for n in range(4)}
    outcomes = []
    for n in range(4):
        base = outcome({"PAD": True, "STAGES": 4, "BLOCK": 64})
        slower = 0.0 if n < 2 else -math.log(1.3)
        bytes_total = 58_000 * (n + 1)
        blocks = 2 if n < 2 else 1
        outcomes.append(
            type(base)(
                base.kind,
                slower,
                slower - 0.01,
                slower + 0.01,
                resources={
                    "shared_bytes_total": bytes_total,
                    "blocks_resident": blocks,
                    "occupancy": 0.125 * blocks,
                    "registers": 64,
                    "spill_bytes": 0,
                },
            )
        )
    run = make_run(
        tmp_path / "runs", outcomes, configurations=configurations, meta={"device": DEVICE}
    )
    (cliff,) = explain_data(read_run(run)).over_space.cliffs
    assert (cliff.before, cliff.after, cliff.figure) == (2, 3, "shared_bytes_total")
    assert "2 blocks of 175,024 bytes of shared memory are 350,048 bytes" in cliff.text
    assert "a multiprocessor has 233,472" in cliff.text


def test_stages_are_worth_nothing_while_conflicts_hold(tmp_path: Path) -> None:
    """The story of the asynchronous copy that brought 1.01x."""
    pairs = explained(tmp_path).over_space.pairs
    found = next(p for p in pairs if {p.parameter, p.other} == {"PAD", "STAGES"})
    assert (found.parameter, found.source, found.to) == ("STAGES", 1, 4)
    assert (found.other, found.other_value, found.other_to) == ("PAD", False, True)
    assert found.alone == pytest.approx(1.0, abs=0.1)
    assert found.together == pytest.approx(1.5, abs=0.15)
    assert found.low > 1
    assert found.text.startswith("STAGES 1 to 4 is worth 1.")


BEST: dict[str, Value] = {"PAD": True, "STAGES": 4, "BLOCK": 64}


def row(
    name: str, after: Value | None, ratio: float, also: dict[str, Value], **figures: float
) -> dict[str, object]:
    """A row of an ablation of `BEST`."""
    return {
        "parameter": name,
        "before": BEST.get(name),
        "after": after,
        "also": also,
        "why": "pair" if name else "",
        "outcome": "ok",
        "reason": "",
        "ratio": ratio,
        "ratio_low": ratio * 0.99,
        "ratio_high": ratio * 1.01,
        "same_code": not name,
        "resources": figures,
    }


def ablation_fact(rows: list[dict[str, object]]) -> dict[str, object]:
    return {"trial": 0, "configuration": BEST, "date": "2030-01-01", "rows": rows}


def ablation(rows: list[dict[str, object]]) -> Ablation:
    return msgspec.convert(ablation_fact(rows), Ablation)


def test_a_measured_pair_counts_before_the_model_and_says_why(tmp_path: Path) -> None:
    """Of the three changes only one of a pair, only the other, and both are measured."""
    pair = next(
        p
        for p in explained(tmp_path / "a").over_space.pairs
        if {p.parameter, p.other} == {"PAD", "STAGES"}
    )
    one, other = (pair.parameter, pair.source), (pair.other, pair.other_value)
    ratios = {"PAD": 0.5, "STAGES": 1 / 1.44}
    rows = [
        row("", None, 1.0, {}),
        row(one[0], one[1], ratios[one[0]], {}),
        row(other[0], other[1], ratios[other[0]], {}),
        row(one[0], one[1], 0.49, {other[0]: other[1]}),
    ]
    held = gathered(
        launch(pipes={"shared": 0.9}, conflicts=0.5),
        **{other[0]: other[1]},  # type: ignore[arg-type]
    )
    run = planted_run(tmp_path / "runs", held, gathered(launch()), ablation=ablation_fact(rows))
    found = explain_data(read_run(run))
    measured = next(p for p in found.over_space.pairs if p.basis == "paired")
    assert measured.together == pytest.approx(1 / ratios[one[0]])
    assert measured.alone == pytest.approx(ratios[other[0]] / 0.49)
    assert measured.because.endswith("it is limited by bank conflicts")
    assert limiter_words("latency: wait") == "latency, waiting for an instruction's fixed latency"
    assert all(not e.also for e in found.effects if e.basis == "paired")


def test_valuable_choices_are_measured_without_the_most_valuable_one() -> None:
    worths = {"BLOCK": 1.01, "STAGES": 1.4, "PAD": 2.0}
    values: dict[str, Value] = {"BLOCK": 32, "STAGES": 1, "PAD": False}
    effects = [
        Effect(
            parameter=name, source=values[name], to=BEST[name], worth=worth, low=None, high=None,
            basis="trials",
        )
        for name, worth in worths.items()
    ]  # fmt: skip
    assert list(pairs_to_measure((), effects)) == [("STAGES", 1, "PAD", False)]
    assert list(pairs_to_measure((), effects[2:])) == []
    rows = [
        row("", None, 1.0, {}),
        row("PAD", False, 0.5, {}),
        row("STAGES", 1, 1 / 1.4, {}),
        row("PAD", False, 0.49, {"STAGES": 1}),
    ]
    (found,) = with_measurements((), ablation(rows), BEST)
    assert found.basis == "paired"
    assert found.text == "STAGES 1 to 4 is worth 1.40x with PAD=true, 1.02x with PAD=false"
    assert list(pairs_to_measure((found,), effects)) == [("STAGES", 1, "PAD", False)]
    other = msgspec.structs.replace(found, parameter="BLOCK")
    assert list(pairs_to_measure((other, found, other), effects)) == [
        ("BLOCK", 1, "PAD", False),
        ("STAGES", 1, "PAD", False),
    ]
    independent = [*rows[:-1], row("PAD", False, 0.5 / 1.4, {"STAGES": 1})]
    assert with_measurements((), ablation(independent), BEST) == ()


def effect_change(name: str, value: Value) -> Change:
    changed = Configuration({**BEST, name: value})
    return Change(changed, name, BEST[name], value, "neighbour", {})


def test_a_measured_worth_chooses_pairs_before_the_models() -> None:
    """The model thinks most of BLOCK, whose change was not measured."""
    effects = [
        Effect(
            parameter=name, source=value, to=BEST[name], worth=worth, low=None, high=None,
            basis="model",
        )
        for name, value, worth in (("BLOCK", 32, 3.0), ("STAGES", 1, 1.01), ("PAD", False, 1.0))
    ]  # fmt: skip
    assert list(pairs_to_measure((), effects)) == []
    rows = [
        AblationRow(effect_change(name, value), "ok", "", 1 / worth, None, None, False)
        for name, value, worth in (("STAGES", 2, 1.3), ("PAD", False, 2.0))
    ]  # fmt: skip
    assert list(pairs_to_measure((), effects, rows)) == [
        ("BLOCK", 32, "PAD", False),
        ("STAGES", 2, "PAD", False),
    ]
    possible = pairs_to_measure((), effects, rows, lambda choices: choices.parameter != "BLOCK")
    assert list(possible) == [("STAGES", 2, "PAD", False)]
    failed = dataclasses.replace(rows[0], change=effect_change("BLOCK", 32), ratio=None)
    assert list(pairs_to_measure((), effects, [*rows, failed])) == [("STAGES", 2, "PAD", False)]


def test_only_possible_pairs_of_the_model_count() -> None:
    pairs = [
        Pair(
            parameter=name, source=1, to=2, other="PAD", other_value=False, other_to=True,
            alone=1.0, together=1.2, factor=1.2, low=1.1, high=1.3, text="",
        )
        for name in ("A", "B", "C", "D")
    ]  # fmt: skip
    chosen = pairs_to_measure(pairs, (), (), lambda choices: choices.parameter not in "AB")
    assert [choices.parameter for choices in chosen] == ["C", "D"]


def test_a_measured_pair_replaces_the_models_of_the_same_parameters() -> None:
    model = Pair(
        parameter="STAGES", source=2, to=4, other="PAD", other_value=False, other_to=True,
        alone=1.0, together=1.2, factor=1.2, low=1.1, high=1.3, text="",
    )  # fmt: skip
    rows = [
        row("", None, 1.0, {}),
        row("PAD", False, 0.5, {}),
        row("STAGES", 1, 1 / 1.4, {}),
        row("PAD", False, 0.49, {"STAGES": 1}),
    ]
    (found,) = with_measurements((model,), ablation(rows), BEST)
    assert (found.source, found.basis) == (1, "paired")


def test_a_pairs_figures_are_not_those_of_a_single_change(tmp_path: Path) -> None:
    """Only both changes together spill."""
    rows = [
        row("", None, 1.0, {}, spill_bytes=0),
        row("PAD", False, 0.5, {}, spill_bytes=0),
        row("PAD", False, 0.4, {"STAGES": 2}, spill_bytes=400),
    ]
    run = planted_run(tmp_path / "runs", ablation=ablation_fact(rows))
    found = effect(explain_data(read_run(run)), "PAD", False)
    assert (found.basis, found.because) == ("paired", "")


def test_a_worth_is_told_with_all_that_changed(tmp_path: Path) -> None:
    rows = [row("", None, 1.0, {}), {**row("BLOCK", 32, 0.5, {"STAGES": 2}), "why": "default"}]
    run = planted_run(tmp_path / "runs", ablation=ablation_fact(rows))
    found = explain_data(read_run(run))
    assert "BLOCK=64, 2.00x over 32 with STAGES=2" in found.headline
    assert "BLOCK=64 over 32 with STAGES=2" in html_page_of(found)


def test_counts_in_an_unrolled_loop_are_not_why_it_is_slower(tmp_path: Path) -> None:
    """Twice the instructions do the work of two rounds."""
    mine, other = launch(counted=False), launch(counted=False)
    assert other.static is not None
    twice = {name: 2 * count for name, count in other.static.loop_instructions.items()}
    unrolled = msgspec.structs.replace(other.static, loop_instructions=twice)
    there = gathered(msgspec.structs.replace(other, static=unrolled), PAD=False)
    assert effect(explained(tmp_path, gathered(mine), there), "PAD", False).because == ""


def test_of_several_cases_it_is_said_which_one_is_explained(tmp_path: Path) -> None:
    first, second = (ok(speedup, cases=[case]) for speedup, case in ((1.2, "a"), (4.8, "b")))
    both = msgspec.structs.replace(
        first, fitness=math.log(2.4), measurements=(*first.measurements, *second.measurements)
    )
    found = explain_data(read_run(make_run(tmp_path / "runs", [both])))
    assert found.headline.startswith("Trial 0 takes 833 µs on a, 1.20x the speed of sdpa:flash.")
    assert "Over its 2 cases the speedup is 2.40x in the geometric mean. The" in found.headline
    assert "limiter is that of a, the worth of its choices is over all cases" in found.headline


def test_a_trial_that_the_sample_of_a_long_run_lacks_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "MOST_TRIALS", 10)
    run = planted_run(tmp_path / "runs")
    left_out = {trial.number for trial in read_run(run).trials}
    number, other = [
        n for n in range(24) if n not in left_out and outcome(all_configurations()[n]).ok
    ][:2]
    request = ExplainRequest(trial=number, against=str(other), measure=False)
    found = explain_run(run, request)
    assert found.trial == number
    assert found.against is not None
    assert found.against.name == f"trial {other}"
    assert any("of 24 trials" in text for text in found.missing)
    with pytest.raises(UsageError, match="has no trial 24"):
        explain_run(run, ExplainRequest(trial=24, measure=False))


def test_what_decides_is_what_was_planted(tmp_path: Path) -> None:
    importance = explained(tmp_path).over_space.importance
    shares = {item.parameter: item for item in importance}
    assert sum(item.best for item in importance) == pytest.approx(1.0)
    assert sum(item.model or 0 for item in importance) == pytest.approx(1.0)
    assert shares["PAD"].best > 0.3


def test_an_effect_is_explained_by_the_evidence_of_the_change(tmp_path: Path) -> None:
    mine = gathered(launch())
    other = gathered(launch(pipes={"shared": 0.9}, conflicts=0.5), PAD=False)
    found = explained(tmp_path, mine, other)
    assert effect(found, "PAD", False).because == (
        "no bank conflicts (there 50% of shared memory's passes)"
    )
    assert "no bank conflicts" in found.headline


def test_the_other_side_in_a_dozen_lines_most_telling_first(tmp_path: Path) -> None:
    mine = gathered(launch(waves=1.0))
    other = gathered(launch(conflicts=0.31, waves=1.3, stalls={"short_scoreboard": 5.0}), PAD=False)
    run = planted_run(tmp_path / "runs", mine, other)
    request = ExplainRequest(measure=False, against=str(number_of(PAD=False)))
    against = explain_run(run, request).against
    assert against is not None
    assert against.worth == pytest.approx(2.0)
    assert (against.low, against.high) == pytest.approx((1.98, 2.02), abs=0.001)
    assert "2.00x its speed [1.98, 2.02]" in against_line(against)
    assert against.changed == {"PAD": (True, False)}
    assert "no bank conflicts (there 31%" in against.headline
    assert "1.00 waves of blocks (there 1.30)" in [line.text for line in against.lines]
    assert len(against.lines) <= 12


def test_the_baseline_by_its_counters(tmp_path: Path) -> None:
    sdpa = gathered(launch(), launch(), baseline="sdpa:cudnn")
    run = planted_run(tmp_path / "runs", gathered(launch()), sdpa)
    found = explain_run(run, ExplainRequest(measure=False, against="baseline")).against
    assert found is not None
    assert (found.name, found.worth) == ("sdpa:cudnn", pytest.approx(1.2))
    assert (found.low, found.high) == pytest.approx((1.194, 1.206))
    assert "1 launch (there 2)" in [line.text for line in found.lines]


def test_the_baselines_worth_is_the_leaderboards_speedup(tmp_path: Path) -> None:
    """Medians of two times are another quotient than the median of pairs on a noisy machine."""
    run = planted_run(tmp_path / "runs")
    data = read_run(run)
    subject = dataclasses.replace(chosen_subject(data, None), time_us=10.0, baseline_us=24.3)
    side = side_of(run, data, subject, "baseline")
    assert side is not None
    assert machine_on(side, subject, data).time_us == pytest.approx(10.0 * 1.2)


def test_a_trial_of_the_run_is_held_against_another_by_their_speedups(tmp_path: Path) -> None:
    """The explained trial was timed while the machine was ten times as slow."""
    run = planted_run(tmp_path / "runs")
    data = read_run(run)
    slow = dataclasses.replace(chosen_subject(data, None), time_us=100.0, baseline_us=120.0)
    default = side_of(run, data, slow, "default")
    assert default is not None
    assert machine_on(default, slow, data).time_us == pytest.approx(100.0 * 2.2)
    elsewhere = dataclasses.replace(default, own_run=False)  # its own time is all that is known
    assert machine_on(elsewhere, slow, data).time_us == pytest.approx(10.0 * 2.2)


def test_trials_too_noisy_to_say_something_are_not_shown(tmp_path: Path) -> None:
    pad = effect(explained(tmp_path), "PAD", False)
    noisy = msgspec.structs.replace(pad, worth=1.2, low=0.1, high=300.0)
    narrow = msgspec.structs.replace(pad, worth=1.2, low=0.9, high=1.5)
    measured = msgspec.structs.replace(noisy, basis="paired")
    assert shown_effects([pad, noisy, narrow, measured]) == [pad, narrow, measured]


def test_a_speed_that_no_fresh_process_confirmed_says_so(tmp_path: Path) -> None:
    said = "It was not confirmed in a fresh process."
    run = planted_run(tmp_path / "runs")
    assert said in explain_data(read_run(run)).headline
    confirmed = make_run(
        tmp_path / "confirmed", [ok(1.2)], confirmations={0: ok(1.1)}, configurations={0: {"A": 1}}
    )
    assert said not in explain_data(read_run(confirmed)).headline
    recording = make_run(tmp_path / "recorded", [recorded(1.0)], meta={"kind": "recorded"})
    assert said not in explain_data(read_run(recording)).headline


def test_an_interval_without_an_end_is_no_error(tmp_path: Path) -> None:
    wild = [ok(1.1 + number / 10, low=1e-300, high=1e300) for number in range(3)]
    values = {number: {"TILE": number} for number in range(3)}
    found = explain_data(read_run(make_run(tmp_path / "runs", wild, configurations=values)))
    assert effect(found, "TILE", 1).high == pytest.approx(math.exp(700))


def test_a_figure_that_says_nothing_is_named_and_so_is_a_lack_of_suggestions(
    tmp_path: Path,
) -> None:
    noisy = str(explain_data(read_run(make_run(tmp_path / "a", [ok(1.2, flags=["too_noisy"])]))))
    quiet = str(explain_data(read_run(make_run(tmp_path / "b", [ok(1.2)]))))
    assert "flagged too_noisy" in " ".join(noisy.split())
    assert "too_noisy" not in quiet
    assert "Next: no suggestion" in quiet


def test_suggestions_follow_from_the_limiter_and_can_be_tested(tmp_path: Path) -> None:
    busy = launch(pipes={"mufu": 0.8, "fma": 0.1, "tensor": 0.4, "shared": 0.1})
    found = explained(tmp_path, gathered(busy))
    assert found.limiter.name == "MUFU"
    first = found.next[0]
    assert first.kind == "technique"
    assert "polynomials on the FMA pipe" in first.text
    assert "MUFU is busy for 80% of the time, the FMA pipe for 10%" in first.rule
    assert 1.3 < first.estimate < 2.1
    assert len(found.next) <= 5


def test_the_text_tells_the_machine_code_and_the_waits(tmp_path: Path) -> None:
    found = explained(tmp_path, gathered(launch()))
    assert found.machine_code is not None
    block = str(found).split("In the machine, by ")[1].split("\n\n")[0]
    assert f"{found.machine_code.registers} registers a thread" in block
    assert f"{found.machine_code.warps} of {found.machine_code.max_warps} warps" in block
    assert "instructions in the innermost loops: " in block
    assert "cycles that a warp waits between two instructions: " in block
    assert "In the machine" not in str(msgspec.structs.replace(found, machine_code=None))


@pytest.mark.parametrize(("share", "said"), [(0.4999, 49), (0.5, 50), (0.29, 29), (0.699, 69)])
def test_a_share_below_a_bound_does_not_read_as_the_bound(share: float, said: int) -> None:
    assert limiter_rules._whole_percent(share) == said


def test_suggestions_that_are_configurations_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimate beside measurement; the others stay as they are."""
    run = planted_run(tmp_path / "runs")
    subject = chosen_subject(read_run(run), None)
    other = {**subject.configuration, "BLOCK": 32}
    suggestions = (
        Suggestion(kind="technique", text="t", rule="r", estimate=1.5),
        Suggestion(kind="configuration", text="c", rule="r", estimate=1.2, configuration=other),
    )

    def rows(reopened: object, number: int, own: object, changes: list[Change]) -> object:
        assert [change.configuration.to_json() for change in changes[1:]] == [other]
        for change in changes:
            yield AblationRow(change, "ok", "", 1.07, 1.05, 1.09, False)

    monkeypatch.setattr(explaining, "measured_rows", rows)
    explaining.try_suggestions(run, None, subject, suggestions, print)  # type: ignore[arg-type]
    kept = read_run(run).facts.tries
    technique, tried = with_tries(suggestions, subject.configuration, kept)
    assert technique is suggestions[0]
    assert (tried.estimate, tried.measured, tried.measured_low) == (1.2, 1.07, 1.05)
    text = str(msgspec.structs.replace(explain_data(read_run(run)), next=(technique, tried)))
    assert "estimate 1.20x; measured 1.070x [1.050, 1.090]" in text
    assert with_tries(suggestions, Configuration(other), kept) == suggestions  # of another champion
    explaining.try_suggestions(run, None, subject, suggestions, print)  # type: ignore[arg-type]
    assert read_run(run).facts.tries == kept  # the newest result alone


def test_the_end_of_a_domain_is_extended_where_the_last_step_paid(tmp_path: Path) -> None:
    configurations = {n: {"STAGES": 1 << n, "OTHER": n % 2} for n in range(4)}
    outcomes = []
    from .planted import outcome

    for n in range(4):
        fitness = 0.2 * n
        base = outcome({"PAD": True, "STAGES": 4, "BLOCK": 64})
        outcomes.append(type(base)(base.kind, fitness, fitness - 0.01, fitness + 0.01))
    configurations = {n: {"STAGES": 1 << n} for n in range(4)}
    run = make_run(tmp_path / "runs", outcomes, configurations=configurations)
    found = explain_data(read_run(run))
    (item,) = [s for s in found.next if s.kind == "space"]
    assert item.text == "STAGES=16"
    assert item.estimate == pytest.approx(1 + (math.exp(0.2) - 1) / 2)


def test_a_run_without_its_device_says_what_is_missing(tmp_path: Path) -> None:
    found = explained(tmp_path)
    assert found.limiter.name == ""
    assert found.counters == {"unavailable": "not measured"}
    assert sum("not measured yet" in text for text in found.missing) == 2
    refused = explained(tmp_path / "refused", gathered(launch(counted=False)))
    assert refused.counters == {"unavailable": "ERR_NVGPUCTRPERM: not permitted"}
    assert "counters: ERR_NVGPUCTRPERM: not permitted" in refused.missing


def test_an_ablation_that_has_not_ended_counts_and_says_what_is_left(tmp_path: Path) -> None:
    rows = [row("", None, 1.0, {}), row("STAGES", 2, 0.5, {})]
    begun = {**ablation_fact(rows), "fitnesses": [0.0], "binary": "", "left": 7}
    found = explain_data(read_run(planted_run(tmp_path / "runs", ablation_part=begun)))
    measured = next(e for e in found.effects if e.basis == "paired")
    assert (measured.parameter, measured.worth) == ("STAGES", pytest.approx(2.0))
    (left,) = [text for text in found.missing if "7 changes" in text]
    assert "not measured yet; this goes on with them: evotune explain " in left


def test_a_measurement_for_which_no_time_is_left_is_named(tmp_path: Path) -> None:
    """The evidence of the trial itself is measured however short the time is."""
    run = planted_run(tmp_path / "runs")
    missing: list[str] = []
    data = read_run(run)
    study = TrialStudy.of(data, chosen_subject(data, None), None)

    def gather(configuration: Configuration, label: str) -> NoReturn:
        raise EvotuneError("asked for")

    access: Any = SimpleNamespace(away="", gather=gather, reopened=SimpleNamespace(run=run))
    side = side_of(run, data, study.subject, str(number_of(PAD=False)))
    gathering = Gathering(data, study, access, lambda text: None, missing, seconds=0.0)
    gathering.evidence(side, demanded=False)
    own, other = missing
    assert own == "machine code and counters of this trial: asked for"
    assert "no time was left; this continues: evotune explain " in other


def test_ceilings_that_were_measured_for_one_trial_hold_for_all_of_the_run(tmp_path: Path) -> None:
    found = explained(tmp_path, gathered(launch(), PAD=False))
    assert found.machine_code is None  # that was of the other one
    data = read_run(planted_run(tmp_path / "more", gathered(launch(), PAD=False)))
    view = SimpleNamespace(
        space=SimpleNamespace(
            parameters=(),
            active=lambda configuration: (),
            is_valid=lambda configuration: False,
            neighbours=lambda configuration: (),
        ),
        work_of=lambda configuration, label: WORK,
        launch_figures=lambda configuration: {"launches": 1.0},
    )
    roofline = explain_data(data, view=view).roofline  # type: ignore[arg-type]
    assert roofline is not None
    assert roofline.ceilings == "measured"
    assert {unit.kind for unit in roofline.units if unit.name != "launch"} == {"model"}


def test_that_ptx_was_read_is_told(tmp_path: Path) -> None:
    item = launch()
    assert item.static is not None
    view = msgspec.structs.replace(item.static, source="ptx")
    found = explained(tmp_path, gathered(msgspec.structs.replace(item, static=view)))
    said = "machine code: PTX was read in its place, since no disassembler read it: pip install"
    assert any(text.startswith(said) for text in found.missing)


def test_doubts_about_ceilings_are_told(tmp_path: Path) -> None:
    disturbed = msgspec.structs.replace(CEILINGS, notes=("measured while GPU is 30% busy",))
    found = explained(tmp_path / "a", gathered(launch(), ceilings=disturbed))
    assert "ceilings: measured while GPU is 30% busy" in found.missing
    bare = gathered(launch(counted=False), ceilings=Ceilings(kind="model"))
    peak = "ceilings: the peak of NVIDIA H200 by its description, which a kernel may not reach"
    assert peak in explained(tmp_path / "b", bare).missing


def test_a_recorded_run_is_explained_by_its_trials_alone(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "runs", [recorded(1.0 + n % 4) for n in range(16)], meta={"kind": "recorded"}
    )
    found = explain_run(run, QUIET)
    assert found.over_space.valid == 16
    assert found.roofline is None
    assert "recorded run" in found.missing[0]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ExplainRequest(trial=999, measure=False), "has no trial 999"),
        (ExplainRequest(against="999", measure=False), "has no trial 999"),
        (ExplainRequest(against="nothing", measure=False), "no run 'nothing'"),
        (ExplainRequest(trial=3, measure=False), "trial 3 has no time: resource_limit"),
    ],
)
def test_what_is_not_there_is_a_usage_error(
    tmp_path: Path, request_: ExplainRequest, message: str
) -> None:
    outcomes = number_of(STAGES=5)
    request = request_
    if request.trial == 3:
        request = ExplainRequest(trial=outcomes, measure=False)
        message = message.replace("3", str(outcomes))
    run = planted_run(tmp_path / "runs")
    with pytest.raises(UsageError, match=message):
        explain_run(run, request)


def test_text_fits_a_terminal_and_html_holds_no_markup_of_others(tmp_path: Path) -> None:
    run = planted_run(
        tmp_path / "runs", gathered(launch()), space="<script>alert(1)</script>\x1b[2J"
    )
    found = explain_run(run, ExplainRequest(measure=False, against="default"))
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert f"\n\nTrial {found.trial} takes 10.0 µs on {CASE}, 1.20x the speed of" in text
    assert "not surely" not in text
    page = html_page_of(found)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_an_open_speedup_is_said_with_its_interval(tmp_path: Path) -> None:
    run = planted_run(tmp_path / "runs")
    with RunStore.open_for_writing(run.store) as store:
        best = explain_run(run, ExplainRequest(measure=False)).trial
        found = outcome(all_configurations()[best])
        (measured,) = found.measurements
        wide = msgspec.structs.replace(measured, speedup_low=0.8, speedup_high=1.8)
        store.confirm(best, msgspec.structs.replace(found, measurements=(wide,)), 2.0)
    headline = explain_run(run, ExplainRequest(measure=False)).headline
    assert "(not surely: the 95% interval is 0.80 to 1.80)" in headline


SCHEMA = {
    "type": "object",
    "required": ["limiter", "roofline", "counters", "effects", "against", "next", "missing"],
    "properties": {
        "limiter": {
            "type": "object",
            "required": ["name", "share", "evidence", "rule"],
            "properties": {
                "name": {"type": "string"},
                "share": {"type": ["number", "null"]},
                "evidence": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["text", "kind", "numbers"],
                        "properties": {"kind": {"enum": ["measured", "static", "model"]}},
                    },
                },
            },
        },
        "roofline": {"type": ["object", "null"], "required": ["units", "time_us", "intensity"]},
        "counters": {"type": "object"},
        "effects": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["parameter", "from", "to", "worth", "low", "high", "basis"],
            },
        },
        "against": {"type": ["object", "null"], "required": ["lines", "headline", "changed"]},
        "next": {
            "type": "array",
            "maxItems": 5,
            "items": {"type": "object", "required": ["kind", "text", "rule", "estimate"]},
        },
    },
}


def test_json_keeps_its_schema(tmp_path: Path) -> None:
    run = planted_run(tmp_path / "runs", gathered(launch()))
    found = explain_run(run, ExplainRequest(measure=False, against="default"))
    jsonschema.validate(json.loads(json.dumps(found.to_json())), SCHEMA)


def test_reports_hold_the_explanation(tmp_path: Path) -> None:
    run = Run(planted_run(tmp_path / "runs", gathered(launch())))
    page = run.report(tmp_path / "report.html").read_text()
    assert '"limiter":"latency: long_scoreboard"' in page
    assert "function explainSection" in page
    held = "It is limited by latency: 71% of a warp's waits are for global or local memory."
    assert held in run.report(tmp_path / "r.md").read_text()
    nothing = make_run(tmp_path / "nothing", [])
    assert '"explanation":null' in Run(nothing).report(tmp_path / "nothing.html").read_text()


def test_trials_of_another_model_of_device_are_not_compared(tmp_path: Path) -> None:
    def on(model: str, speedup: float, stages: int) -> tuple[Outcome, dict[str, Value]]:
        resources = {"device": {"model": model, "id": model}}
        return msgspec.structs.replace(ok(speedup), resources=resources), {"STAGES": stages}

    def refused(model: str, stages: int) -> tuple[Outcome, dict[str, Value]]:
        resources = {"device": {"model": model, "id": model}} if model else {}
        failure = Outcome(OutcomeKind.RESOURCE_LIMIT, reason="no room", resources=resources)
        return failure, {"STAGES": stages}

    made = [on("Test CPU", 1.2, 1), on("L4", 5.0, 2), on("Test CPU", 1.8, 4), on("L4", 6.0, 8)]
    made += [refused("L4", 16), refused("", 32)]  # the last one no device has seen
    configurations = {number: values for number, (_, values) in enumerate(made)}
    outcomes = [each for each, _ in made]
    # Measured on the run's first device.
    measured = ablation_fact([row("", None, 1.0, {}), row("STAGES", 2, 0.3, {})])
    meta = {"ablation": {**measured, "configuration": {"STAGES": 8}}}
    run = make_run(tmp_path / "runs", outcomes, configurations=configurations, meta=meta)
    found = explain_data(read_run(run))
    assert (found.trial, found.device) == (2, "Test CPU")
    assert {e.source: round(e.worth, 2) for e in found.effects if e.worth} == {1: 1.5}
    assert (found.over_space.trials, found.over_space.valid) == (3, 2)
    assert [e.source for e in found.effects if e.worth is None] == [32]
    there = explain_run(run, ExplainRequest(trial=3, against="2", measure=False))
    assert there.device == "L4"
    assert {(e.source, e.basis) for e in there.effects if e.worth} == {(2, "trials")}
    assert [e.source for e in there.effects if e.worth is None] == [16, 32]
    assert there.against is not None
    assert (there.against.name, there.against.low) == ("trial 2 on Test CPU", None)


def test_a_page_has_estimates_with_their_intervals() -> None:
    item = Suggestion(kind="constraint", text="A=1", rule="r", estimate=1.02, low=0.93, high=1.12)
    found = SimpleNamespace(next=(item,))
    assert report_parts._suggested(found) == [["constraint", "A=1", "1.02x [0.93, 1.12]", "r"]]
    assert report_parts._tries(found) == [
        "Try this (constraint): A=1. Estimate 1.02x [0.93, 1.12]."
    ]


def test_what_does_not_fit_the_text_is_counted(tmp_path: Path) -> None:
    missing = tuple(f"part {number}" for number in range(10))
    text = str(msgspec.structs.replace(explained(tmp_path), missing=missing))
    assert text.endswith("  - part 7\n  - and 2 more, which --format json lists\n")


@pytest.mark.parametrize("version", range(1, newest_version() + 1))
def test_a_run_of_an_older_evotune_is_explained(tmp_path: Path, version: int) -> None:
    released = Path(__file__).parents[1] / "store" / "released" / f"version_{version}.sql"
    connection = sqlite3.connect(tmp_path / "store.sqlite")
    connection.executescript(released.read_text())
    connection.close()
    found = explain_run(RunFolder(tmp_path), QUIET)
    assert found.trial == 0
    assert found.limiter.name == ""
    assert found.missing


def test_evidence_of_another_shape_is_damage(tmp_path: Path) -> None:
    run = planted_run(tmp_path / "runs", evidence=[{"case": 7}])
    with pytest.raises(StoreError, match="damaged"):
        explain_run(run, QUIET)
