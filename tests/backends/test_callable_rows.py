"""Rows of calls that a host makes together, and the clock of the process that waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from evotune.backends.base.launch import CompileFailure
from evotune.backends.python import host_process, rows
from evotune.backends.python.rows import ReleaseRow, Waits
from evotune.trial import OutcomeKind
from evotune.verify import own_clock
from evotune.verify.buffers import BufferSets
from tests.callables import CallableTrials, callable_trials

DATA = Path(__file__).parent / "data" / "callables"


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallableTrials]:
    with callable_trials(DATA / "rows.yaml", tmp_path_factory.mktemp("rows")) as made:
        yield made


@pytest.mark.parametrize("behaviour", ["new", "given"])
def test_a_row_makes_the_calls_that_were_drawn_and_no_other(
    trials: CallableTrials, behaviour: str
) -> None:
    x, buffers, row = opened(trials, behaviour)
    for wanted in (0, 1, 5, 7):
        for complement in (False, True):
            buffers.prepare()
            made = row.at_once(wanted, complement=complement)
            assert len(set(made.places)) == wanted
            assert made.time_us > 0.0
            right = [torch.equal(out, 2 * x + 1) for out in buffers.outputs()["out"]]
            assert [place for place, is_right in enumerate(right) if is_right] == sorted(
                made.places
            )
    trials.session.take_stock()


def test_of_a_buffer_that_is_returned_each_time_the_last_call_is_judged(
    trials: CallableTrials,
) -> None:
    _, buffers, row = opened(trials, "keeps_its_buffer")
    buffers.prepare()
    assert len(row.at_once(5, complement=False).places) == 1
    trials.session.take_stock()
    outcome = trials.run(BEHAVIOUR="keeps_its_buffer")
    assert outcome.ok or outcome.undecided, outcome.reason
    assert {c.status for c in outcome.checks if c.inputs == "own clock"} <= {"skipped"}


def opened(
    trials: CallableTrials, behaviour: str, count: int = 7
) -> tuple[torch.Tensor, BufferSets, ReleaseRow]:
    """A row at so many places, and the input that all of them have."""
    cases = trials.cases(BEHAVIOUR=behaviour)
    assert not isinstance(cases, CompileFailure)
    item = cases[0]
    x = torch.randn(64, 128)
    session = trials.session
    session.take_stock()
    kernel = session.load(Path(item.binary), item.plan)
    session.build(kernel, item.plan, {"x": x}, 3600.0)
    specs = trials.problem.tensors(item.case)
    buffers = BufferSets(specs, item.plan, [{"x": x}] * count, "cpu", memory=session.memory)
    calls = [session.bind(kernel, item.plan, buffers.pointers(n)) for n in range(count)]
    return x, buffers, session.row(calls)


def test_outputs_that_change_after_the_end_of_a_row_are_seen(
    trials: CallableTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker looks twice; here the second look finds other bytes."""
    monkeypatch.setattr(rows, "_SPOT_BYTES", 1 << 20)
    _, buffers, row = opened(trials, "given")
    monkeypatch.setattr(rows.time, "sleep", lambda seconds: buffers.prepare())
    monkeypatch.setattr(rows, "_LATE_LOOKS", 1.0)
    with pytest.raises(host_process.CallableFault, match="after the end of a row of calls"):
        row.at_once(3, complement=False)
    trials.session.take_stock()


def test_a_time_that_hides_work_contradicts_the_own_clock(
    trials: CallableTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer seems to come most of a call's time too early, as if its stamp lied."""
    call_ns = host_process.Host.call_ns

    def too_early_ns(*given: Any, **more: Any) -> float:
        return call_ns(*given, **more) / 8

    monkeypatch.setattr(host_process.Host, "call_ns", too_early_ns)
    monkeypatch.setattr(own_clock, "_PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(rows, "_DISTURBED_SHARE", float("inf"))
    outcome = trials.run(BEHAVIOUR="sleeps")
    assert outcome.kind is OutcomeKind.TOO_FAST, outcome.reason
    assert "in rows that are released together" in outcome.reason


@pytest.mark.soak
def test_the_own_clock_agrees_with_an_honest_one(
    trials: CallableTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_DISTURBED_SHARE", float("inf"))
    monkeypatch.setattr(own_clock, "_PAUSES_S", (0.0, 0.0, 0.0))
    found: list[own_clock.Compared] = []
    monkeypatch.setattr(own_clock, "_RATIO", 10.0)  # the machine may be busy
    compared = own_clock._bout

    def noted(*arguments: Callable[[], object]) -> own_clock.Compared | None:
        made = compared(*arguments)
        found.extend([made] if made else [])
        return made

    monkeypatch.setattr(own_clock, "_bout", noted)
    outcome = trials.run(BEHAVIOUR="sleeps")
    assert outcome.ok, outcome.reason
    assert found[-1].slope_us > 10_000


def test_the_wait_of_a_thread_for_a_core_is_that_of_the_longest(
    trials: CallableTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, row = opened(trials, "given")
    host = row._row.host
    waits = Waits(host)
    assert len(waits._files) >= 2  # this thread, and the host's
    assert waits.end_ns() >= 0
    counts = iter([[5, 7], [25, 8]])
    monkeypatch.setattr(Waits, "_read_ns", lambda self: next(counts))
    assert Waits(host).end_ns() == 20
    monkeypatch.undo()
    waits = Waits(host)
    trials.session.take_stock()  # it ends the host
    assert waits.end_ns() >= 0
