"""Kernels that recognise a check are found: timed launches are watched, and their time is doubted.

The kernels are Python functions on the CPU, where an intervention writes between two calls.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Sequence

import pytest
import torch

from evotune.backends.base.session import Intervention, Renewal
from evotune.backends.cpu import cpu_session
from evotune.backends.cpu.cpu_session import CpuSampler, CpuSession
from evotune.problems import create_problem
from evotune.trial import OutcomeKind, Value
from evotune.verify import watch as reuse_module
from evotune.verify import watch as watch_module
from evotune.verify.gate import Gate, Subject, Verdict, audit, reuse, watch_long_rows
from evotune.verify.pool import InputPool
from evotune.verify.watch import (
    Answer,
    Asked,
    Replaced,
    Watch,
    WatchedSampler,
    slower_on_new_inputs,
    slower_than_timed,
)
from verify.kernels import PROBLEM, exact, kernel, make_case, plan

CASE = make_case(20, causal=True)
IN_A_ROW = 24
Launch = Callable[..., object]


@pytest.fixture(scope="module")
def pool() -> InputPool:
    return InputPool(PROBLEM, secret="a secret")


class Timed:
    """A candidate on its buffers at `places` places, as it is timed; each round watches it."""

    def __init__(self, pool: InputPool, launch: Launch, *, places: int = 1, seed: int = 0) -> None:
        session = CpuSession()
        self.gate = Gate(session, PROBLEM, pool, deterministic=True)
        subject = Subject(CASE, plan(), launch)
        self.buffers = self.gate.buffers(subject, [pool.get(CASE, "normal", seed)] * places)
        launches = [
            session.bind(launch, subject.plan, self.buffers.pointers(place))
            for place in range(places)
        ]
        sampler = session.sampler([each for each in launches for _ in range(IN_A_ROW)])
        self.watch = Watch(
            session,
            pool,
            CASE,
            seed,
            buffers=self.buffers,
            launches=launches,
            samplers=[sampler],
        )
        self.verdict = Verdict()
        self._sampler = WatchedSampler(sampler, self.watch, self.judge)

    def judge(self, watched: Sequence[watch_module.Watched]) -> None:
        self.gate.judge_watched(CASE, watched, self.verdict)

    def rounds(self, count: int = 10) -> Verdict:
        for _ in range(count):
            self._sampler.run()
            for _ in range(2):
                self.watch.change()
                self._sampler.time_us()
        self.judge(self.watch.take())
        self.watch.settle()
        return self.verdict


@pytest.mark.parametrize("places", [1, 3])
def test_a_right_kernel_passes_and_leaves_everything_as_it_was(
    pool: InputPool, places: int
) -> None:
    timed = Timed(pool, kernel(CASE, exact), places=places)
    assert timed.rounds().passed, timed.verdict.reason
    assert timed.watch.reuse().words == ""
    inspection = timed.buffers.inspect()
    assert [inspection.damage(place) for place in range(places)] == [""] * places


def _resting(rests: Callable[[int, ctypes.c_void_p], bool]) -> Launch:
    """A kernel that is right, except that it writes nothing in calls for which `rests` is true.
    `rests` gets the number of the call and the address of q."""
    honest = kernel(CASE, exact)
    calls: list[int] = []

    def launch(*pointers: ctypes.c_void_p) -> None:
        calls.append(1)
        if not rests(len(calls), pointers[0]):
            honest(*pointers)

    return launch


def _after_alike_launches(patience: int, step: int) -> Callable[[int, ctypes.c_void_p], bool]:
    """Reads every `step`-th element of q, and rests after `patience` launches found them equal."""
    seen: list[bytes] = []

    def rests(number: int, q: ctypes.c_void_p) -> bool:
        count = 2 * 20 * 32
        assert q.value is not None
        probe = bytes((ctypes.c_float * count).from_address(q.value))
        probe = b"".join(probe[at : at + 4] for at in range(0, len(probe), 4 * step))
        if seen and seen[-1] != probe:
            seen.clear()
        seen.append(probe)
        return len(seen) > patience

    return rests


@pytest.mark.sweep(7)
@pytest.mark.parametrize("places", [1, 3])
@pytest.mark.parametrize(
    "rests",
    [
        lambda: _after_alike_launches(10, 1),
        lambda: _after_alike_launches(10, 16),
        lambda: _after_alike_launches(17, 61),
        lambda: lambda number, q: number % 100 > 40,
        lambda: lambda number, q: 200 < number < 600,
        lambda: lambda number, q: number % IN_A_ROW != 0,
    ],
    ids=["alike", "probe 16", "probe 61", "tired", "for a while", "last of a row"],
)
def test_one_that_rests_while_it_is_timed_is_found(
    pool: InputPool, rests: Callable[[], Callable[[int, ctypes.c_void_p], bool]], places: int
) -> None:
    for seed in range(2):
        verdict = Timed(pool, _resting(rests()), places=places, seed=seed).rounds()
        assert verdict.kind in (OutcomeKind.WRONG_RESULT, OutcomeKind.NAN)
        assert "watched inputs" in verdict.reason


@pytest.fixture
def _rows_of_300(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long rows end for no limit of time: the kernels in Python are slow."""
    monkeypatch.setattr(watch_module, "_LONG_US", 10**9)
    monkeypatch.setattr(cpu_session, "_LONGEST_RENEWING_NS", 10**12)


@pytest.mark.parametrize("places", [1, 3])
@pytest.mark.usefixtures("_rows_of_300")
def test_one_that_rests_after_more_calls_than_a_sample_has_is_found(
    pool: InputPool, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works in the 100 calls after a pause. A sample has fewer, and comes after a pause."""
    honest = kernel(CASE, exact)
    since_the_pause = 0

    def launch(*pointers: ctypes.c_void_p) -> None:
        nonlocal since_the_pause
        since_the_pause += 1
        if since_the_pause <= 100:
            honest(*pointers)

    def after_a_pause(made: Callable[..., object]) -> Callable[..., object]:
        def row(*arguments: object) -> object:
            nonlocal since_the_pause
            since_the_pause = 0
            return made(*arguments)

        return row

    for name in ("run", "time_us", "watch"):
        monkeypatch.setattr(CpuSampler, name, after_a_pause(getattr(CpuSampler, name)))
    timed = Timed(pool, launch, places=places)
    assert timed.rounds().passed, timed.verdict.reason
    watch_long_rows(timed.gate, CASE, timed.watch, timed.verdict)
    assert timed.verdict.kind in (OutcomeKind.WRONG_RESULT, OutcomeKind.NAN)


@pytest.mark.soak
@pytest.mark.usefixtures("_rows_of_300")
def test_one_that_remembers_after_more_calls_than_a_sample_has_is_found(
    pool: InputPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse_module, "_LOOKS", ((5, 0.8), (100, 0.6)))
    seen: list[bytes] = []
    honest = kernel(CASE, exact)

    def launch(*pointers: ctypes.c_void_p) -> None:
        nonlocal seen
        inputs = [bytes((ctypes.c_float * 1280).from_address(p.value or 0)) for p in pointers[:3]]
        seen = [*seen, b"".join(inputs)][-100:]
        if len(seen) < 100 or len(set(seen)) > 1:
            honest(*pointers)
        else:
            ctypes.memmove(pointers[3], answer[0].data_ptr(), answer[0].nbytes)

    timed = Timed(pool, launch)
    answer = [pool.get(CASE, "normal", 0).expected["out"].float().contiguous()]
    assert timed.watch.reuse().words == ""
    watch_long_rows(timed.gate, CASE, timed.watch, timed.verdict)
    found = timed.watch.reuse()
    assert "on those of the launch before" in found.words
    assert found.sure


def test_long_rows_find_nothing_in_a_right_kernel(pool: InputPool) -> None:
    timed = Timed(pool, kernel(CASE, exact), places=3)
    watch_long_rows(timed.gate, CASE, timed.watch, timed.verdict)
    assert timed.verdict.passed, timed.verdict.reason
    assert [timed.buffers.inspect().damage(place) for place in range(3)] == [""] * 3


@pytest.mark.sweep(1)
@pytest.mark.parametrize("patience", [0, 5])
@pytest.mark.parametrize("watched", [0, 1, 2])
def test_results_that_are_kept_by_one_input_are_too_fast(
    pool: InputPool, watched: int, patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is always right, but the kernel works longer when q, k or v is new."""
    monkeypatch.setattr(reuse_module, "_LOOKS", ((5, 0.8), (100, 0.6)))
    monkeypatch.setattr(reuse_module, "_PAUSES_S", (0.0,) * 3)
    seen: list[bytes] = []

    def watching(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        content = (q, k, v)[watched].numpy().tobytes()
        if seen and seen[-1] != content:
            seen.clear()
        seen.append(content)
        if len(seen) <= patience + 1:
            time.sleep(0.02)
        return exact(q, k, v, causal)

    timed = Timed(pool, kernel(CASE, watching))
    reuse(CASE, timed.watch, timed.verdict)
    assert timed.verdict.kind is OutcomeKind.TOO_FAST
    assert "us on those of the launch before" in timed.verdict.reason


def test_the_deepest_audit_finds_a_kernel_that_rests_seldom(pool: InputPool) -> None:
    """It rests in every eleventh launch, whatever it reads."""
    right = Timed(pool, kernel(CASE, exact))
    audit(right.gate, CASE, right.watch, right.verdict)
    assert right.verdict.passed, right.verdict.reason
    last = right.verdict.checks[-1]
    assert (last.inputs, last.status) == ("audited", "passed")
    seldom = Timed(pool, _resting(lambda number, q: number % 11 == 3))
    audit(seldom.gate, CASE, seldom.watch, seldom.verdict)
    assert "watched inputs" in seldom.verdict.reason


def changes_inputs(renewals: Sequence[Sequence[Renewal]]) -> bool:
    """A target with a small storage is memory that no call reads: the inputs stay the same."""
    return renewals[0][0].target.untyped_storage().nbytes() > 1 << 10


class BusySampler(CpuSampler):
    """Gives times of a machine on which every run is interrupted for a different time."""

    def __init__(self, seed: int, fresh_us: float) -> None:
        super().__init__([lambda: None], lambda: None)
        self._noise = random.Random(seed)
        self._fresh_us = fresh_us

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        usual_us = self._fresh_us if changes_inputs(renewals) else 1.0
        return usual_us * self._noise.lognormvariate(0.0, 1.0)


@pytest.mark.parametrize(("fresh_us", "most", "least"), [(1.0, 1, 0), (8.0, 100, 90)])
def test_interrupted_runs_neither_accuse_nor_clear_a_candidate(
    pool: InputPool, fresh_us: float, most: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse_module, "_REST_S", 0.0)
    monkeypatch.setattr(reuse_module, "_PAUSES_S", (0.0,) * 5)
    monkeypatch.setattr(reuse_module, "_LEAST_ROUNDS", 200)  # no lucky run decides
    monkeypatch.setattr(Watch, "_slower_when_replaced", lambda watch: Answer())
    timed = Timed(pool, kernel(CASE, exact))
    accused = 0
    for seed in range(100):
        timed.watch._samplers = [BusySampler(seed, fresh_us)]
        words, sure = timed.watch.reuse()
        accused += bool(words) and sure
    assert least <= accused <= most


class Knowing(CpuSampler):
    """Gives the times of a kernel that keeps results until the checks that follow the timing."""

    def __init__(self) -> None:
        super().__init__([lambda: None], lambda: None)
        self.timing = True

    def time_us(self) -> float:
        return 1.8 if self.timing else 8.0

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        return 8.0 if changes_inputs(renewals) else self.time_us()


@pytest.mark.parametrize("asking", [False, True])
def test_a_kernel_that_keeps_results_only_while_it_is_timed_is_asked_then(
    pool: InputPool, asking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse_module, "_REST_S", 0.0)
    monkeypatch.setattr(Watch, "_slower_when_replaced", lambda watch: Answer())
    monkeypatch.setattr(Watch, "run", lambda watch: None)
    timed, knowing = Timed(pool, kernel(CASE, exact)), Knowing()
    timed.watch._samplers = [knowing]
    sampler = WatchedSampler(knowing, timed.watch, timed.judge, asking=asking)
    for _ in range(20):
        sampler.run()
        sampler.time_us()
    knowing.timing = False
    found = timed.watch.reuse()
    words = "takes 8.0 us on new inputs but 1.8 us while it is timed" if asking else ""
    assert found == Answer(words)


def sampled(pool: InputPool, of: CpuSampler, rounds: int, patch: pytest.MonkeyPatch) -> Answer:
    """The answer of a watch that asks while the sampler is timed; the questions that follow the
    timing are left out. `of.round` is the number of the present round."""
    patch.setattr(Watch, "_slower_when_renewed", lambda watch: Answer())
    patch.setattr(Watch, "_slower_when_replaced", lambda watch: Answer())
    patch.setattr(Watch, "run", lambda watch: None)
    timed = Timed(pool, kernel(CASE, exact))
    timed.watch._samplers = [of]
    sampler = WatchedSampler(of, timed.watch, timed.judge, asking=True)
    for number in range(rounds):
        of.round = number  # type: ignore[attr-defined]
        sampler.run()
        sampler.time_us()
        sampler.time_us()
    return timed.watch.reuse()


class Late(Knowing):
    """Keeps results from a round on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.round, self._first = 0, first

    def time_us(self) -> float:
        return 1.8 if self.round >= self._first else 8.0


@pytest.mark.parametrize(("rounds", "first"), [(20, 9), (30, 14), (40, 18), (60, 28), (200, 95)])
def test_a_kernel_that_keeps_results_only_late_is_asked_then(
    pool: InputPool, rounds: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In more than half of the rounds, so that its median time is the short one."""
    found = sampled(pool, Late(first), rounds, monkeypatch)
    assert found == Answer("takes 8.0 us on new inputs but 1.8 us while it is timed")


class Interrupted(CpuSampler):
    """Gives the times of a processor that is slow for some rounds."""

    def __init__(self, slow: range) -> None:
        super().__init__([lambda: None], lambda: None)
        self.round, self._slow = 0, slow

    def time_us(self) -> float:
        return 14.0 if self.round in self._slow else 4.0

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        return self.time_us()


@pytest.mark.parametrize("slow", [range(1), range(24), range(30), range(20, 32), range(70, 100)])
def test_a_processor_that_changes_its_speed_accuses_nobody(
    pool: InputPool, slow: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sampled(pool, Interrupted(slow), 100, monkeypatch) == Answer()


def test_rows_that_ask_neither_accuse_nor_clear_a_candidate_by_chance() -> None:
    def accused(seed: int, asked_us: float) -> bool:
        rng = random.Random(seed)

        def rows(usual_us: float) -> list[float]:  # on a busy machine
            return [usual_us * rng.choice((1.0, 1.0, 1.0, 1.3, 2.0, 5.0)) for _ in range(20)]

        equal = [time_us if rng.random() < 0.5 else None for time_us in rows(8.0)]
        taken = zip(rows(asked_us), equal, strict=True)
        asked = [Asked(place, *times) for place, times in enumerate(taken)]
        words, sure = slower_than_timed(asked, rows(8.0))
        return bool(words) and sure

    assert not any(accused(seed, 8.0) for seed in range(200))
    assert not any(accused(seed, 9.2) for seed in range(200))
    assert sum(accused(seed, 24.0) for seed in range(200)) > 180
    asked = [Asked(2 * number, 24.0, 8.0 if number % 2 else None) for number in range(13)]
    assert slower_than_timed(asked[1:], [8.0] * 40) == Answer()
    words, sure = slower_than_timed(asked, [8.0] * 40)
    assert words
    assert sure


@pytest.mark.parametrize("equal_us", [24.0, None])
def test_rows_that_ask_prove_nothing_where_rows_on_constant_inputs_are_slow_or_missing(
    equal_us: float | None,
) -> None:
    """Other work on the machine makes both slow."""
    asked = [Asked(2 * number, 24.0, equal_us) for number in range(13)]
    words, sure = slower_than_timed(asked, [8.0] * 40)
    assert words
    assert not sure


class Moments:
    """A clock, and times of rows on a machine whose noise depends on the moment."""

    def __init__(self, fresh_us: float, noise: Callable[[float, random.Random], float]) -> None:
        self.now_s, self._fresh_us, self._noise = 0.0, fresh_us, noise
        self._rng = random.Random(0)

    def rest(self, seconds: float) -> None:
        self.now_s += seconds

    def answer(self) -> Answer:
        return slower_on_new_inputs(
            random.Random(1),
            lambda: self._row(self._fresh_us, 1),
            lambda: self._row(10.0, 0),
            rest=self.rest,
            now=lambda: self.now_s,
        )

    def _row(self, usual_us: float, side: int) -> float:
        self.now_s += 0.001
        return usual_us * self._noise(self.now_s if side else -self.now_s, self._rng)


def _quiet(now_s: float, rng: random.Random) -> float:
    return rng.uniform(1.0, 1.02)


def _busy(now_s: float, rng: random.Random) -> float:
    """Every row is interrupted, for a different time."""
    return 1.0 + rng.expovariate(0.5)


def _unlucky_at_first(now_s: float, rng: random.Random) -> float:
    """For a while other work hits only the rows on new inputs."""
    return 3.0 if 0.0 < now_s < 0.7 else 1.0


@pytest.mark.parametrize("noise", [_quiet, _busy, _unlucky_at_first])
def test_an_honest_kernel_is_cleared_by_a_later_moment(
    noise: Callable[[float, random.Random], float],
) -> None:
    assert Moments(10.0, noise).answer() == Answer()


@pytest.mark.parametrize("noise", [_quiet, _busy])
def test_a_kernel_that_keeps_results_is_slower_at_each_moment(
    noise: Callable[[float, random.Random], float],
) -> None:
    moments = Moments(60.0, noise)
    words, sure = moments.answer()
    assert "us on those of the launch before" in words
    assert sure
    assert moments.now_s >= 0.6, "it was asked at three moments"


def test_where_noise_hides_the_difference_the_answer_is_not_sure() -> None:
    """Familiar rows never take less than new ones, but often as long: neither is shown."""
    noise = iter([1.0, 1.0, *[2.0, 1.0] * 10**6])
    moments = Moments(13.0, lambda now_s, rng: next(noise) if now_s < 0.0 else 1.0)
    words, sure = moments.answer()
    assert words
    assert not sure


def test_no_bout_begins_after_the_limit() -> None:
    moments = Moments(60.0, _quiet)
    moments._row = lambda usual_us, side: (moments.rest(4.0), usual_us)[1]  # type: ignore[method-assign]
    words, sure = moments.answer()
    assert words
    assert not sure
    assert moments.now_s < 2 * 60


def test_a_noisy_machine_leaves_a_verdict_undecided(
    pool: InputPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(pool, kernel(CASE, exact))
    monkeypatch.setattr(Watch, "reuse", lambda watch: Answer("takes longer", sure=False))
    reuse(CASE, timed.watch, timed.verdict)
    assert timed.verdict.kind is OutcomeKind.UNDECIDED
    assert "the machine is too noisy: a launch takes longer" in timed.verdict.reason
    assert not timed.verdict.passed


def test_rows_on_changing_inputs_leave_out_the_calls_that_timed_rows_leave_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first calls find cold caches: they took most of a short row."""
    now_ns = 0

    def call(made: list[int] = []) -> None:  # noqa: B006
        nonlocal now_ns
        made.append(0)
        now_ns += 100_000 if len(made) % 10 in (1, 2) else 1_000

    monkeypatch.setattr(cpu_session.time, "perf_counter_ns", lambda: now_ns)
    sampler = CpuSampler([call] * 10, lambda: None, untimed=2)
    assert sampler.time_us() == 1.0
    assert sampler.time_while_renewing([], 0) == 1.0
    memory = [Renewal(torch.zeros(1), torch.ones(8))]
    assert sampler.time_while_renewing([memory], 0) == 1.0


class Searching(CpuSampler):
    """Gives the time of a kernel that looks for the first large value."""

    def __init__(self, values: torch.Tensor, kept_us: float) -> None:
        super().__init__([lambda: None], lambda: None)
        self._values = values
        self._kept_us = kept_us
        self._last = torch.empty(0)

    def run(self) -> None:
        self._last = self._values.clone()

    def time_us(self) -> float:
        kept = self._kept_us and self._values.equal(self._last)
        return self._kept_us if kept else 1.0 + float((self._values > 2).int().argmax())


@pytest.mark.parametrize("forgetting", [False, True])
@pytest.mark.parametrize(("kept_us", "is_accused"), [(0.0, False), (0.5, True)])
def test_times_on_new_and_on_familiar_inputs_are_of_the_same_values(
    kept_us: float, is_accused: bool, forgetting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The large value that comes at once in the inputs does not in others."""
    monkeypatch.setattr(reuse_module, "_REST_S", 0.0)
    monkeypatch.setattr(reuse_module, "_SORTED", 1)
    now = torch.randn(4000, generator=torch.Generator().manual_seed(0)).clamp(max=1.9)
    now[0], now[2000] = 3.0, 3.0
    view = now.view(torch.int32).clone()
    replaced = Replaced(
        Searching(view.view(torch.float32), kept_us),
        [(view, now, now)],
        most=5,
        limit_s=1.0,
        rng=random.Random(0),
        forgetting=forgetting,
    )
    words, sure = slower_on_new_inputs(
        random.Random(0), replaced.fresh_us, replaced.familiar_us, rest=lambda seconds: None
    )
    assert (bool(words), sure) == (is_accused, True)
    replaced.restore()
    assert view.view(torch.float32).equal(now)


def test_the_writes_of_an_intervention_come_between_its_calls() -> None:
    memory = torch.zeros(1, 2)
    seen: list[list[float]] = []
    sampler = CpuSampler([lambda: seen.append(memory[0].tolist())] * 6, lambda: None)
    writes = [(memory[:, 1:], torch.tensor([[7.0]]))]
    back = [(memory[:, 1:], torch.tensor([[0.0]]))]
    sampler.watch([Intervention(1, 3, 0.5, writes), Intervention(3, 6, 0.9, back)], 0.0)
    assert [each[1] for each in seen] == [0, 0, 7, 7, 7, 0]


class Noting(CpuSampler):
    """Notes where interventions write."""

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        super().__init__(calls, lambda: None)
        self.written: set[int] = set()

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[float]:
        self.written |= {target.data_ptr() for each in interventions for target, _ in each.writes}
        return super().watch(interventions, call_us)


def test_lengths_stay_while_calls_are_made() -> None:
    """The blocks of a launch must agree on them, and a write may come while a launch works."""
    problem = create_problem("attention_paged", "float32")
    shape: dict[str, Value] = {"sequences": 3, "queries": 1, "heads": 2, "longest": 40}
    case = problem.case({**shape, "page_size": 8, "head_dim": 16}, {"causal": True})
    pool, session = InputPool(problem, secret="a secret"), CpuSession()
    subject = Subject(case, plan(), lambda *pointers: None)
    gate = Gate(session, problem, pool, deterministic=True)
    buffers = gate.buffers(subject, [pool.get(case, "normal", 0)])
    sampler = Noting([lambda: None] * IN_A_ROW)
    watch = Watch(
        session,
        pool,
        case,
        0,
        buffers=buffers,
        launches=[lambda: None],
        samplers=[sampler],
    )
    names = ("q", "k_pages", "v_pages", "seq_lens", "page_table")
    memory = {name: buffers.elements(name, 0, 1)[0] for name in names}
    changed: set[str] = set()
    for _ in range(60):
        watch.run()
        for name, at in memory.items():
            end = at.data_ptr() + pool.get(case, "normal", 0).inputs[name].nbytes
            changed |= {name} if any(at.data_ptr() <= w < end for w in sampler.written) else set()
    assert changed == {"q", "k_pages", "v_pages", "page_table"}
