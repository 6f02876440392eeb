"""Explanations against another side that lacks something, and what may not be asked together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from report.runs import make_run, ok, recorded

from evotune.errors import UsageError
from evotune.explain import explaining
from evotune.explain.explaining import ExplainRequest, Gathering, explain_run
from evotune.explain.explanation import html_page_of
from evotune.explain.findings import Suggestion
from evotune.explain.machine_differences import Machine, against_of
from evotune.explain.subjects import chosen_subject, machine_on, read_run, side_of
from evotune.runs.evidence_gathering import Access, keep_evidence
from evotune.runs.folder import RunFolder

from .planted import gathered, launch, number_of, planted_run


def test_times_of_two_cases_are_not_divided(tmp_path: Path) -> None:
    run = planted_run(tmp_path / "runs")
    data = read_run(run)
    elsewhere = dataclasses.replace(chosen_subject(data, None), case="(9,9,9,9)")
    side = side_of(run, data, elsewhere, str(number_of(PAD=False)))
    assert side is not None
    assert machine_on(side, elsewhere, data).time_us is None


def test_a_side_without_a_time_on_the_case_is_named(tmp_path: Path) -> None:
    run = planted_run(tmp_path / "runs")
    other = _recorded_run(tmp_path)
    found = explain_run(run, ExplainRequest(measure=False, against=other.id))
    assert found.against is not None
    assert found.against.worth is None
    said = f"the speed of trial 0 of {other.id} on Test CPU: it was not timed on this trial's case"
    assert said in found.missing


def test_another_run_is_named_with_its_device_and_ones_own_run_is_none(tmp_path: Path) -> None:
    run = planted_run(tmp_path / "runs")
    number = number_of(PAD=False)
    other = make_run(tmp_path / "runs", [ok(1.2)], name="another")
    found = explain_run(run, ExplainRequest(measure=False, against=f"{other.id}:0"))
    assert found.against is not None
    assert found.against.name == f"trial 0 of {other.id} on Test CPU"
    own = explain_run(run, ExplainRequest(measure=False, against=f"{run.id}:{number}"))
    assert own.against is not None
    assert (own.against.name, own.against.low is None) == (f"trial {number}", False)


def test_reasons_why_the_other_sides_figures_are_missing_are_told(tmp_path: Path) -> None:
    sdpa = gathered(launch(counted=False), baseline="sdpa:cudnn")
    run = planted_run(tmp_path / "runs", gathered(launch()), sdpa)
    found = explain_run(run, ExplainRequest(measure=False, against="baseline"))
    assert "counters of sdpa:cudnn: ERR_NVGPUCTRPERM: not permitted" in found.missing


def _recorded_run(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path / "runs", [recorded(1.0)], name="recording", meta={"kind": "recorded"})


def test_trying_launches_so_it_cannot_be_asked_without_measuring(tmp_path: Path) -> None:
    run = planted_run(tmp_path / "runs")
    with pytest.raises(UsageError, match="--no-measure and --try exclude each other"):
        explain_run(run, ExplainRequest(measure=False, tries=True))


@pytest.mark.parametrize("measure", [None, True])
def test_a_side_that_cannot_be_opened_is_missing_unless_measuring_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure: bool | None
) -> None:
    run, other = planted_run(tmp_path / "runs"), _recorded_run(tmp_path)

    def opened(wanted: RunFolder) -> Access:
        if wanted.path == other.path:
            raise UsageError("it cannot be opened")
        return Access(SimpleNamespace(run=wanted), "")  # type: ignore[arg-type]

    monkeypatch.setattr(Access, "to", opened)
    monkeypatch.setattr(Gathering, "_trial", lambda *args: None)
    monkeypatch.setattr(Gathering, "ablation", lambda self: None)
    monkeypatch.setattr(explaining, "_view", lambda access: None)
    monkeypatch.setattr(explaining, "_usual_minutes", lambda access: 1.0)
    request = ExplainRequest(measure=measure, against=other.id)
    if measure:
        with pytest.raises(UsageError, match="cannot be opened"):
            explain_run(run, request)
        return
    said = f"machine code and counters of trial 0 of {other.id} on Test CPU: it cannot be opened"
    assert said in explain_run(run, request).missing


def test_machine_code_is_not_compared_with_ptx() -> None:
    """PTX counts other instructions: nothing is unrolled or spilled in it yet."""
    view = launch(local=12).static
    assert view is not None
    few = msgspec.structs.replace(view, loop_instructions={"tensor": 4, "alu": 400})
    for source, found in (("ptx", set()), ("nvdisasm 13.0", {"tensor", "alu", "shared_load"})):
        there = msgspec.structs.replace(few, source=source)
        sides = (launch(), msgspec.structs.replace(launch(), static=there))
        mine, other = (Machine("", gathered=gathered(side)) for side in sides)
        named = {line.figure for line in against_of(mine, other).lines if line.kind == "static"}
        assert named == {f"{kind} instructions" for kind in found}


def test_figures_that_grow_with_a_case_are_compared_on_one_case_only() -> None:
    mine = gathered(launch())
    there = gathered(launch(blocks=8, waves=0.5, conflicts=0.5, local=12), PAD=False)
    elsewhere = msgspec.structs.replace(there, case="(9,9,9,9)")
    on_one, on_two = (
        {line.figure for line in against_of(Machine("", gathered=mine), machine).lines}
        for machine in (Machine("", gathered=there), Machine("", gathered=elsewhere))
    )
    grown = {"blocks", "waves", "bank conflicts"}
    assert grown <= on_one
    assert on_two == on_one - grown
    assert "local instructions" in on_two


def test_counters_of_another_case_are_missing(tmp_path: Path) -> None:
    run = planted_run(tmp_path / "runs")
    other = make_run(tmp_path / "runs", [ok(1.0)], name="other", configurations={0: {"PAD": False}})
    elsewhere = msgspec.structs.replace(
        gathered(launch()), case="(9,9,9,9)", configuration={"PAD": False}
    )
    keep_evidence(other, [elsewhere])
    found = explain_run(run, ExplainRequest(measure=False, against="other"))
    said = "counters of trial 0 of other on Test CPU: the known ones are of (9,9,9,9)"
    assert said in found.missing


def test_html_says_what_the_text_says_of_the_other_side_and_of_tries(tmp_path: Path) -> None:
    run = planted_run(tmp_path / "runs")
    against = str(number_of(PAD=False))
    found = explain_run(run, ExplainRequest(measure=False, against=against))
    tried = Suggestion(kind="configuration", text="c", rule="r", estimate=1.2, low=1.1, high=1.3)
    suggestions = (
        msgspec.structs.replace(tried, outcome="compile_error"),
        msgspec.structs.replace(tried, measured=1.07, measured_low=1.05, measured_high=1.09),
    )
    page = html_page_of(msgspec.structs.replace(found, next=suggestions))
    assert f"Against trial {against}: 2.00x its speed" in page
    assert "PAD true (there false)" in page
    assert "estimate 1.20x [1.10, 1.30]; tried: compile_error" in page
    assert "measured 1.070x [1.050, 1.090]" in page
    same = msgspec.structs.replace(found.against, lines=())
    assert "no difference in the machine is known" in html_page_of(
        msgspec.structs.replace(found, against=same)
    )
