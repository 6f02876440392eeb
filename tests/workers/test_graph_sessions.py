"""A trial in a session like a GPU's: several places and graphs, eager and cold samplers.

The kernels are Python functions on the CPU's memory, so the steps that only a GPU adds to a
champion's trial are tested without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from verify.kernels import PROBLEM, exact, kernel, make_case, plan

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile, LaunchPlan
from evotune.backends.base.session import Fault, Sampler
from evotune.backends.cpu.cpu_session import CpuSampler, CpuSession
from evotune.backends.cuda.cuda_session import classify
from evotune.problems.problem import Case
from evotune.timing.paired import TimingSettings, measure_paired
from evotune.trial import Check, Measurement, Outcome, OutcomeKind
from evotune.verify import gate
from evotune.verify.pool import InputPool
from evotune.workers import trial_runner, trial_timer
from evotune.workers.executor import HELD_OUT, TIMED, BaselineTiming
from evotune.workers.messages import TrialCase, TrialRequest
from evotune.workers.trial_runner import TrialRunner
from evotune.workers.trial_timer import FailedBaseline

CASES = (make_case(33, causal=True), make_case(20, causal=False))
PROFILE = DeviceProfile("GPU", "cpu", "", {})


class GraphSession(CpuSession):
    """Equal buffers at several places, means over several samplers, eager calls, cold inputs."""

    warm_bytes = 1 << 18
    untimed_calls = 0
    in_order = True
    cold_bytes = 1 << 17

    def __init__(self, kernels: Mapping[str, Callable[..., object]]) -> None:
        super().__init__()
        self._kernels = kernels
        self.eager: list[int] = []
        self.freed = 0

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        return self._kernels[str(path)]

    def left_running(self, run: Callable[[], object] | None = None) -> str:
        return ""

    def take_stock(self) -> str:
        return ""  # the tests' process, whose memory other tests use too, is no worker

    def free(self) -> None:
        self.freed += 1

    def eager_sampler(self, calls: Sequence[Callable[[], object]]) -> CpuSampler:  # type: ignore[override]
        self.eager.append(len(calls))
        return CpuSampler(calls, lambda: None)


def job(role: str, **fields: Any) -> TrialRequest:
    cases = tuple(
        TrialCase(
            case,
            TIMED if case is CASES[0] else role,
            plan(),
            PROBLEM.flops(case),
            binary=case.label,
        )
        for case in CASES
    )
    chosen = {case.label: "sdpa:math" for case in CASES}
    # With this number the gate alters the buffers on which the eager calls are replayed.
    return TrialRequest(number=0, cases=cases, baselines=chosen, **fields)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TimingSettings(
        min_rounds=1, max_rounds=2, sample_us=1.0, places=3, graphs=2, baseline_graphs=2
    )
    monkeypatch.setattr(TimingSettings, "thorough", lambda: settings)
    monkeypatch.setattr(trial_runner, "_START_S", 0.1)  # kernels in Python would take it all


def run(session: CpuSession, **fields: Any) -> Outcome:
    runner = TrialRunner(session, PROFILE, PROBLEM, deterministic=True)
    request = job(HELD_OUT, **fields)
    runner.prepare(request)
    with runner.beside(request) as beside:
        return runner.run(request, beside)


@pytest.mark.parametrize("confirm", [True, False])
def test_a_right_kernel_passes_every_way_in_which_it_is_timed(confirm: bool) -> None:
    session = GraphSession({case.label: kernel(case, exact) for case in CASES})
    outcome = run(session, confirm=confirm)
    assert outcome.kind is OutcomeKind.OK, outcome.reason
    caches = [(m.case, m.cache, m.held_out) for m in outcome.measurements]
    first, second = (case.label for case in CASES)
    both = [(first, "warm", False), (first, "cold", False), (second, "warm", True)]
    assert caches == ([*both, (second, "cold", True)] if confirm else [both[0], both[2]])
    assert bool(session.eager) == confirm
    for measured in outcome.measurements:
        assert (measured.eager_us is not None) == (confirm and measured.cache == "warm")


@pytest.mark.parametrize("confirm", [True, False])
def test_only_what_decides_between_champions_is_timed_on_while_in_doubt(
    confirm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def noted(*samplers: Sampler, **how: Any) -> Measurement:
        if "leader_speedup" in how:  # a cold measurement has none: it decides nothing
            speedups = (how["contender_speedup"], how["leader_speedup"])
            asked.append((how["held_out"], bool(how["settings"].extra_rounds), *speedups))
        return measure_paired(*samplers, **how)

    monkeypatch.setattr(trial_timer, "measure_paired", noted)
    session = GraphSession({case.label: kernel(case, exact) for case in CASES})
    assert run(session, confirm=confirm, contender=math.log(1e-9)).ok
    needed = pytest.approx(1e-9)
    if confirm:
        assert asked == [(False, True, 0.0, needed), (True, False, 0.0, 0.0)]
    else:
        assert asked == [(False, False, needed, needed), (True, False, 0.0, 0.0)]


class QueueingSession(GraphSession):
    """Notes whether the calls that a sampler ran last are still queued."""

    def __init__(self, kernels: Mapping[str, Callable[..., object]]) -> None:
        super().__init__(kernels)
        self.queued = False

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> CpuSampler:
        sampler = super().sampler(calls, untimed=untimed)
        run = sampler.run

        def queue() -> None:
            run()
            self.queued = True

        sampler.run = queue  # type: ignore[method-assign]
        return sampler

    def synchronize(self) -> None:
        super().synchronize()
        self.queued = False


def test_nothing_of_a_trial_is_queued_when_it_is_over() -> None:
    """A queued call that fails later, or never ends, would be blamed on the next candidate."""
    session = QueueingSession({case.label: kernel(case, exact) for case in CASES})
    assert run(session, confirm=False).ok
    assert not session.queued


@pytest.mark.parametrize("confirm", [True, False])
def test_whether_a_slow_champion_reuses_results_is_asked_too(
    confirm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A champion's time is reported even if it does not lead. A slow candidate of the search does
    not matter."""
    asked: list[str] = []
    monkeypatch.setattr(trial_runner, "reuse", lambda case, *rest: asked.append(case.label))
    session = GraphSession({case.label: kernel(case, exact) for case in CASES})
    assert run(session, confirm=confirm, contender=math.log(1e9)).ok
    both = [case.label for case in CASES]
    assert asked == (both if confirm else both[1:])


@pytest.mark.parametrize("confirm", [True, False])
def test_a_champion_that_is_hard_to_believe_is_audited(
    confirm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_runner, "_SUSPICIOUS_SPEEDUP", 0.0)
    monkeypatch.setattr(gate, "_AUDITED_RUNS", 5)
    monkeypatch.setattr(gate, "_REUSE_ASKED", 1)
    session = GraphSession({case.label: kernel(case, exact) for case in CASES})
    outcome = run(session, confirm=confirm)
    assert outcome.ok, outcome.reason
    assert "suspicious" in outcome.flags
    audited = [check.case for check in outcome.checks if check.inputs == "audited"]
    assert audited == ([case.label for case in CASES] if confirm else [])


class SmallSession(GraphSession):
    """Has no memory to capture the baseline that holds all scores, although it runs eagerly."""

    def __init__(self) -> None:
        super().__init__({})

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> CpuSampler:
        if "unfused" in repr(calls[0]):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB.")
        return super().sampler(calls, untimed=untimed)

    def fault(self, error: RuntimeError) -> Fault | None:
        return classify(error, lambda: True)


def test_a_baseline_too_large_to_be_captured_is_left_out() -> None:
    session = SmallSession()
    runner = TrialRunner(session, PROFILE, PROBLEM, deterministic=True)
    timings = runner.time_baselines(CASES)
    assert {(t.case, t.name) for t in timings} >= {(case.label, "sdpa:math") for case in CASES}
    assert all(t.passed and t.time_us > 0 for t in timings)
    assert not [t for t in timings if t.name == "unfused"]
    assert session.freed == len(CASES)  # the next case gets the memory of this one's baselines


class RefusingSession(GraphSession):
    """PyTorch refuses to capture one baseline."""

    def __init__(self) -> None:
        super().__init__({})

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> Sampler:
        if "unfused" in repr(calls[0]):
            raise RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture")
        return super().sampler(calls, untimed=untimed)


def test_a_baseline_that_fails_is_blamed_and_left_out_by_the_next_process() -> None:
    runner = TrialRunner(RefusingSession(), PROFILE, PROBLEM, deterministic=True)
    failed: list[BaselineTiming] = []
    for case in CASES:
        with pytest.raises(FailedBaseline, match="unfused: RuntimeError: Cannot copy") as raised:
            runner.time_baselines(CASES, failed=failed)
        failed.append(raised.value.timing)
        assert (failed[-1].case, failed[-1].name) == (case.label, "unfused")
    timings = runner.time_baselines(CASES, failed=failed)
    assert [t for t in timings if t.name == "unfused"] == failed
    assert {t.case for t in timings if t.passed and t.time_us > 0} == {c.label for c in CASES}


def test_a_library_that_cannot_be_called_has_a_reason_in_place_of_a_time() -> None:
    runner = TrialRunner(SmallSession(), PROFILE, PROBLEM, deterministic=True)
    (refused,) = [t for t in runner.time_baselines(CASES[:1], ["fa4"]) if t.name == "fa4"]
    assert (refused.passed, refused.time_us) == (False, 0.0)
    assert refused.reason.startswith("fa4: ")


def test_the_sanitizer_finds_memory_that_the_worker_needs_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = GraphSession({case.label: kernel(case, exact) for case in CASES})
    freed: list[int] = []
    backend = type(registry.named(PROFILE.backend))

    def sanitizing(_: object, cases: object) -> nullcontext[Callable[[], list[Check]]]:
        freed.append(session.freed)
        return nullcontext(list)

    monkeypatch.setattr(backend, "sanitizing", sanitizing)
    runner = TrialRunner(session, PROFILE, PROBLEM, deterministic=True)
    request = job(HELD_OUT, confirm=True, audit=True)
    with runner.beside(request) as beside:
        outcome = runner.run(request, beside)
    assert outcome.kind is OutcomeKind.OK, outcome.reason
    assert freed == [1]


def test_each_process_of_a_candidate_draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all of them would look at the same places at the same moments, and miss the same."""
    drawn: set[tuple[str, int]] = set()
    stream = InputPool.stream

    def noted(pool: InputPool, case: Case, purpose: str, number: int) -> int:
        if purpose in ("watch", "alter"):
            drawn.add((purpose, number))
        return stream(pool, case, purpose, number)

    monkeypatch.setattr(InputPool, "stream", noted)
    how: list[dict[str, Any]] = [{}, {"confirm": True}, {"repeat": 2}, {"repeat": 3}]
    for fields in how:
        assert run(GraphSession({case.label: kernel(case, exact) for case in CASES}), **fields).ok
    for purpose in ("watch", "alter"):
        assert sum(each == purpose for each, _ in drawn) == len(how)


class ChangedSession(GraphSession):
    def take_stock(self) -> str:
        return "changed the CPU affinity"


def test_a_candidate_is_not_blamed_for_what_was_changed_before_it() -> None:
    session = ChangedSession({case.label: kernel(case, exact) for case in CASES})
    runner = TrialRunner(session, PROFILE, PROBLEM, deterministic=True)
    request = job(HELD_OUT, confirm=False)
    runner.prepare(request)
    outcome = runner.run(request, None)
    assert (outcome.kind, runner.doubtful) == (OutcomeKind.LAUNCH_ERROR, True)
    assert outcome.reason == "an earlier kernel, or another program, changed the CPU affinity"
