"""Times one case: candidate and baseline in alternation, warm, cold and as eager calls."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch

from evotune.backends.base.session import RestoringSampler, Sampler, Session
from evotune.problems.examination import mistake_of
from evotune.problems.libraries import UnusableBaseline
from evotune.problems.problem import (
    Case,
    Problem,
    Tensors,
    TensorSpec,
    comparable,
    torch_dtype,
)
from evotune.problems.user import UserProblem
from evotune.timing.paired import (
    TimingSettings,
    eager_sampler,
    eager_times_us,
    measure_paired,
    places,
    restored_places,
    rotating_sampler,
    time_in_turn_us,
    warm_sampler,
)
from evotune.trial import Measurement, OutcomeKind
from evotune.verify.accuracy import LIMITS, errors_against
from evotune.verify.buffers import BufferSets
from evotune.verify.gate import Gate, Subject
from evotune.verify.pool import InputPool, InputSet
from evotune.verify.watch import Watch, Watched, WatchedSampler
from evotune.workers.executor import RIVAL, BaselineTiming

_BASELINES_KEPT = 32  # fewer where their inputs take too much memory
_MOST_COLD_SETS = 256


@dataclass(frozen=True, slots=True)
class BaselineCalls:
    """Calls of one baseline, each on inputs of its own. A baseline may update the tensors that a
    kernel updates in place: `restore`, if there are any, gives them their values again."""

    calls: Sequence[Callable[[], Tensors]]
    restore: Callable[[], None] | None

    @classmethod
    def of(
        cls, problem: Problem, case: Case, inputs: Mapping[str, torch.Tensor], name: str, count: int
    ) -> BaselineCalls:
        copies = [dict(inputs)]
        for _ in range(count - 1):
            copies.append({tensor: value.clone() for tensor, value in inputs.items()})
        updated = [spec.name for spec in problem.tensors(case) if spec.is_updated]
        rows = {tensor: torch.stack([inputs[tensor]] * count) for tensor in updated}
        kept = {tensor: value.clone() for tensor, value in rows.items()}
        for number, own in enumerate(copies):
            own |= {tensor: value[number] for tensor, value in rows.items()}

        def restore() -> None:
            for tensor, value in rows.items():
                value.copy_(kept[tensor])

        calls = [problem.baselines(case, own, name)[name] for own in copies]
        return cls(calls, restore if updated else None)


class BaselineSamplers:
    """Warm samplers of baselines, by case, name, seed, settings and number of places. Keeps the
    most recently used ones."""

    def __init__(self, session: Session, problem: Problem, pool: InputPool) -> None:
        self._session = session
        self._problem = problem
        self._pool = pool
        self._kept: OrderedDict[tuple[str, str, int, TimingSettings, int], Sampler] = OrderedDict()

    def get(
        self, case: Case, name: str, seed: int, settings: TimingSettings, restored: int = 0
    ) -> Sampler:
        """`restored`: the number of places at which a candidate is timed that is called once at
        each; else 0."""
        key = (case.label, name, seed, settings, restored)
        if key not in self._kept:
            self._kept[key] = self._make(case, name, seed, settings, restored)
        self._kept.move_to_end(key)
        room = self._session.pool_bytes // (4 * self._pool.set_bytes(case) * max(1, restored))
        while len(self._kept) > max(2, min(_BASELINES_KEPT, room)):
            self._kept.popitem(last=False)
        return self._kept[key]

    def _make(
        self, case: Case, name: str, seed: int, settings: TimingSettings, restored: int
    ) -> Sampler:
        inputs = self._pool.get(case, "normal", seed).inputs
        count = restored or places(self._session, self._pool.set_bytes(case), settings.places)
        found = BaselineCalls.of(self._problem, case, inputs, name, count)
        graphs = settings.baseline_graphs if self._session.warm_bytes else 1
        restore = found.restore
        if restore is None and self._session.calls_once:
            restore = _nothing
        made = warm_sampler(self._session, found.calls, settings, graphs=graphs, restore=restore)
        return self._session.undisturbed(made)


def _nothing() -> None:
    """What must be restored for a baseline that updates no tensors."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A candidate on equal buffers at one or more addresses, and the sampler of its launches."""

    subject: Subject
    buffers: BufferSets
    launches: Sequence[Callable[[], object]]
    sampler: Sampler
    settings: TimingSettings
    watch: Watch | None = None


class CaseTimer:
    """Times candidates on normal inputs of one seed."""

    def __init__(
        self,
        session: Session,
        problem: Problem,
        pool: InputPool,
        baselines: BaselineSamplers,
        seed: int,
        *,
        watching: bool = True,
        draw: int = 0,
    ) -> None:
        """With `watching`, watched runs come among the timed ones (`verify/watch.py`); `draw`
        numbers the random draws for them."""
        self._draw = draw
        self._watching = watching
        self._session = session
        self._problem = problem
        self._pool = pool
        self._baselines = baselines
        self._seed = seed

    def place(self, gate: Gate, subject: Subject, settings: TimingSettings) -> Placed:
        """Puts the candidate on fresh buffers, at several addresses if sampling is thorough. A
        candidate that updates tensors in place gets a place for each call of a sample."""
        inputs = self._pool.get(subject.case, "normal", self._seed)
        nbytes = self._pool.set_bytes(subject.case) + sum(w.bytes for w in subject.plan.workspaces)
        count = places(self._session, nbytes, settings.places)
        once = self._session.calls_once
        restored = once or any(s.is_updated for s in self._problem.tensors(subject.case))
        if restored:
            buffers = gate.buffers(subject, [inputs])
            (launch,) = self._bind(subject, buffers)
            launch()
            single = buffers.sampler(self._session, [launch])
            count = restored_places(self._session, single, buffers.nbytes, settings)
        buffers = gate.buffers(subject, [inputs] * count)
        launches = self._bind(subject, buffers)
        graphs = settings.graphs if self._session.warm_bytes else 1
        timed = self._as_in_a_program(subject.case, launches)
        again = buffers.prepare if once else buffers.restore
        restore = again if restored else None
        sampler = warm_sampler(self._session, timed, settings, graphs=graphs, restore=restore)
        watch = Watch(
            self._session,
            self._pool,
            subject.case,
            self._seed,
            buffers=buffers,
            launches=timed,
            samplers=sampler.parts,
            draw=self._draw,
        )
        return Placed(subject, buffers, launches, sampler, settings, watch)

    def measure(
        self,
        candidate: Placed,
        reference: Placed | str,
        *,
        contender_speedup: float,
        leader_speedup: float,
        held_out: bool,
        asking: bool = False,
        watched: Callable[[Sequence[Watched]], None] = lambda found: None,
    ) -> Measurement:
        """Times the candidate warm, against a rival or the baseline named by `reference`. The
        inputs of candidate and rival change before each sample. Once a round a run of the candidate
        is watched, and `watched` is called with the results of these runs. With `asking` some
        rounds also check whether calls cache results."""
        case = candidate.subject.case
        assert candidate.watch is not None
        changing = [candidate.watch]
        if isinstance(reference, Placed):
            name, sampler = RIVAL, reference.sampler
            assert reference.watch is not None
            changing.append(reference.watch)
        else:
            name = reference
            is_restored = candidate.buffers.has_updates or self._session.calls_once
            restored = len(candidate.launches) if is_restored else 0
            sampler = self._baselines.get(case, name, self._seed, candidate.settings, restored)
        turn = itertools.cycle(changing)
        timed: Sampler = candidate.sampler
        if self._watching:
            timed = WatchedSampler(candidate.sampler, candidate.watch, watched, asking=asking)
        measurement = measure_paired(
            timed,
            sampler,
            case=case.label,
            baseline_name=name,
            settings=candidate.settings,
            contender_speedup=contender_speedup,
            leader_speedup=leader_speedup,
            held_out=held_out,
            before_sample=lambda: next(turn).change(),
            state=self._session.state,
        )
        watched(candidate.watch.take())
        for watch in changing:
            watch.settle()
        return measurement

    def with_eager_times(
        self, measurement: Measurement, candidate: Placed
    ) -> tuple[Measurement, Placed | None]:
        """The measurement with the times of eager calls added, and the candidate as it was timed
        for these. If the device captures no graphs, the measurement is unchanged and the candidate
        None."""
        subject, settings = candidate.subject, TimingSettings()
        buffers, launches = candidate.buffers, candidate.launches
        if not buffers.has_updates:
            buffers, launches = buffers.only(0), launches[:1]
        restore = buffers.restore if buffers.has_updates else None
        mine = eager_sampler(self._session, launches, settings, restore)
        if mine is None:
            return measurement, None
        found = self._baseline_calls(subject.case, measurement.baseline, len(launches))
        theirs = eager_sampler(self._session, found.calls, settings, found.restore)
        assert theirs is not None
        eager_us, baseline_us = eager_times_us(mine, theirs)
        timed = Placed(subject, buffers, launches, mine, settings)
        return (
            msgspec.structs.replace(measurement, eager_us=eager_us, eager_baseline_us=baseline_us),
            timed,
        )

    def measure_cold(
        self, subject: Subject, warm: Measurement
    ) -> tuple[Measurement, Placed] | None:
        """Times both sides on inputs that no cache can hold. Returns the measurement and the
        candidate as it was timed for it; None for cases that are too small, or if the cache sizes
        are unknown.

        The candidate's outputs rotate with its inputs; a baseline allocates its own output, which
        may be the same block each time.
        """
        if not self._session.cold_bytes:
            return None
        inputs = self._inputs(subject.case)
        input_bytes = sum(value.nbytes for value in inputs.values())
        count = 1 + math.ceil(self._session.cold_bytes / input_bytes)
        if count > _MOST_COLD_SETS:
            return None
        specs = self._problem.tensors(subject.case)
        device = self._session.torch_device
        sets = BufferSets(
            specs, subject.plan, [inputs] * count, device, memory=self._session.memory
        )
        launches = self._bind(subject, sets)
        theirs = self._baseline_calls(subject.case, warm.baseline, count)
        settings = TimingSettings.champion()
        restore = sets.restore if sets.has_updates else None
        sampler = rotating_sampler(self._session, launches, settings, restore)
        measurement = measure_paired(
            sampler,
            rotating_sampler(self._session, theirs.calls, settings, theirs.restore),
            case=subject.case.label,
            baseline_name=warm.baseline,
            settings=settings,
            cache="cold",
            held_out=warm.held_out,
            state=self._session.state,
        )
        return measurement, Placed(subject, sets, launches, sampler, settings)

    def _bind(self, subject: Subject, buffers: BufferSets) -> list[Callable[[], object]]:
        return [
            self._session.bind(subject.kernel, subject.plan, buffers.pointers(number))
            for number in range(len(buffers))
        ]

    def _as_in_a_program(
        self, case: Case, launches: Sequence[Callable[[], object]]
    ) -> Sequence[Callable[[], object]]:
        if not self._session.allocates:
            return launches
        outputs = [spec for spec in self._problem.tensors(case) if not spec.is_input]
        return [_allocating(launch, outputs) for launch in launches]

    def _baseline_calls(self, case: Case, name: str, count: int) -> BaselineCalls:
        return BaselineCalls.of(self._problem, case, self._inputs(case), name, count)

    def _inputs(self, case: Case) -> dict[str, torch.Tensor]:
        return dict(self._pool.get(case, "normal", self._seed).inputs)


def _allocating(
    launch: Callable[[], object], outputs: Sequence[TensorSpec]
) -> Callable[[], object]:
    """A call that allocates and frees memory for the outputs, as a program's call would allocate
    it, and then launches. The launch writes into its own buffers, which are watched."""
    wanted = [(spec.shape, spec.all_strides, torch_dtype(spec.dtype)) for spec in outputs]

    def call() -> object:
        for shape, strides, dtype in wanted:
            torch.empty_strided(shape, strides, dtype=dtype)
        return launch()

    return call


_MOST_REASON = 300


class FailedBaseline(Exception):
    """Raised when a baseline raises its own error. This process must then time nothing else,
    because the error may have come in the middle of a capture, or have broken the device's context.
    """

    def __init__(self, timing: BaselineTiming) -> None:
        super().__init__(timing.reason)
        self.timing = timing


class BaselineTimer:
    """Checks baselines against the error limits of candidates, and times them."""

    def __init__(
        self,
        session: Session,
        problem: Problem,
        pool: InputPool,
        failed: Sequence[BaselineTiming] = (),
    ) -> None:
        """`failed` are baselines that raised FailedBaseline in earlier processes."""
        self._failed = failed
        self._session = session
        self._problem = problem
        self._pool = pool

    def of_case(self, case: Case, libraries: Sequence[str]) -> list[BaselineTiming]:
        """The timings of every baseline of the case, those of the named optional libraries too. A
        library that cannot be called has a reason instead of a time, and so has a baseline that
        failed before. Raises FailedBaseline if a baseline fails now."""
        inputs = self._pool.get(case, "normal", 0)
        reasons = {each.name: each.reason for each in self._failed if each.case == case.label}
        passed: dict[str, bool] = {}
        samplers: dict[str, Sampler] = {}
        calls = self._problem.baselines(case, dict(inputs.inputs))
        for name in [each for each in libraries if each not in reasons]:
            calls |= self._problem.baselines(case, dict(inputs.inputs), name)
            if name not in calls:
                reasons[name] = f"{name}: it does not compute {self._problem.name}"
        updates = any(spec.is_updated for spec in self._problem.tensors(case))
        for name, call in calls.items():
            if name in reasons:
                continue
            try:
                if updates:
                    passed[name], samplers[name] = self._updating(case, name, inputs)
                    continue
                passed[name] = self._passes(case, call, inputs)
                samplers[name] = warm_sampler(self._session, [call], TimingSettings())
            except UnusableBaseline as error:
                reasons[name] = str(error)
            except Exception as error:  # noqa: BLE001 (a library raises what it likes)
                self._blame(case, name, error)
        found = [
            BaselineTiming(case.label, name, time_us, passed[name])
            for name, time_us in time_in_turn_us(samplers).items()
        ]
        samplers.clear()
        calls.clear()
        self._session.free()
        refused = [
            BaselineTiming(case.label, name, 0.0, False, why) for name, why in reasons.items()
        ]
        return [*found, *refused]

    def _updating(self, case: Case, name: str, inputs: InputSet) -> tuple[bool, Sampler]:
        """As for any baseline, of one that may update tensors in place."""
        settings, session = TimingSettings(), self._session
        first = BaselineCalls.of(self._problem, case, inputs.inputs, name, 1)
        assert first.restore is not None
        passed = self._passes(case, first.calls[0], inputs)
        single = RestoringSampler(session.sampler(first.calls), first.restore)
        count = restored_places(session, single, self._pool.set_bytes(case), settings)
        found = BaselineCalls.of(self._problem, case, inputs.inputs, name, count)
        return passed, warm_sampler(session, found.calls, settings, restore=found.restore)

    def _passes(self, case: Case, call: Callable[[], Tensors], inputs: InputSet) -> bool:
        """Whether a baseline's outputs are within the error limits that candidates must keep."""
        found = {name: comparable(value) for name, value in call().items()}
        if inputs.answer:
            assert isinstance(self._problem, UserProblem)
            given = dict(inputs.inputs)
            return not self._problem.refusal(case, found, dict(inputs.answer), given)
        return all(
            LIMITS.hold(errors_against(value, inputs.expected[name]))
            for name, value in found.items()
        )

    def _blame(self, case: Case, name: str, error: Exception) -> None:
        """Skips a baseline that ran out of memory, such as one that stores all attention scores at
        long lengths. Raises the error if a user's problem caused it, or if the device is lost;
        otherwise FailedBaseline."""
        fault = self._session.fault(error) if isinstance(error, RuntimeError) else None
        if fault is not None and fault.kind is OutcomeKind.DEVICE_OOM:
            return
        lost = fault is not None and fault.kind is OutcomeKind.DEVICE_LOST
        if lost or (fault is None and mistake_of(self._problem, error) is not None):
            raise error
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MOST_REASON]
        reason = f"{name}: {told}"
        raise FailedBaseline(BaselineTiming(case.label, name, 0.0, False, reason)) from error
