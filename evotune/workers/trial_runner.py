"""Runs one trial inside the device worker: loads, verifies, measures and replays a candidate.

The worker can be killed, so an infinite loop or a segmentation fault ends the trial, but not the
run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from evotune.backends.base.launch import DeviceProfile
from evotune.backends.base.session import LaunchFailure, Session
from evotune.problems.problem import ELEMENT_BYTES, Case, Problem, TensorSpec
from evotune.timing.paired import TimingSettings
from evotune.trial import CUT_SHORT, DeviceState, Measurement, NamedFigures, Outcome, OutcomeKind
from evotune.verify.champion_launches import in_order, run_random_tests
from evotune.verify.gate import Gate, Subject, Verdict, audit, reuse, watch_long_rows
from evotune.verify.kept_checks import worth_keeping
from evotune.verify.own_clock import check_times
from evotune.verify.pool import InputPool
from evotune.workers.champion_checks import Beside, ChampionChecks, Rebuilt, Stages
from evotune.workers.executor import (
    CHECKS,
    EDGE,
    HELD_OUT,
    RANDOM,
    TIMED,
    TIMING,
    WHEN_THERE_IS_TIME,
    BaselineTiming,
)
from evotune.workers.messages import PrepareRequest, TrialCase, TrialRequest
from evotune.workers.trial_timer import BaselineSamplers, BaselineTimer, CaseTimer, Placed

Loaded: TypeAlias = tuple[TrialCase, Subject]

_POOL_SEEDS, _FIRST_SEEDS, _TRIALS_PER_SEED = 4, 2, 32
_CONFIRM_SEED = 1_000_000  # champions see inputs the search never saw
_START_S = 1.0  # for all timed cases together
_OWN_CLOCK_SHARE = 0.1  # of a trial's time
_RANDOM_TESTS_S = 10.0  # a GPU makes a hundred in a second; a CPU as many as it can


class TrialRunner:
    """Runs trials with the session, the problem and the input pool of one worker."""

    def __init__(
        self,
        session: Session,
        profile: DeviceProfile,
        problem: Problem,
        *,
        deterministic: bool,
        secret: str = "",
        without: Collection[str] = (),
    ) -> None:
        """Inputs and places are drawn from `secret`; checks `without` are left out."""
        self._session = session
        self._profile = profile
        self._problem = problem
        self._without = without
        self._kinds = [each for each in problem.input_kinds if each not in without]
        self._pool = InputPool(problem, session.torch_device, session.pool_bytes, secret)
        twice = deterministic and "second launch" not in without
        self._gate = Gate(session, problem, self._pool, deterministic=twice)
        self._champions = ChampionChecks(
            session, profile, problem, self._gate, self._pool, deterministic=deterministic
        )
        self._baselines = BaselineSamplers(session, problem, self._pool)
        self._began_s = 0.0
        self.tainted = False
        """A candidate left something running, or broke the device's context: this process must
        measure nothing more."""
        self.doubtful = False
        """Earlier candidates may have caused the last verdict: they overwrote inputs or references,
        or left no memory."""

    def time_baselines(
        self,
        cases: Sequence[Case],
        libraries: Sequence[str] = (),
        failed: Sequence[BaselineTiming] = (),
    ) -> list[BaselineTiming]:
        """Times every baseline on every case, those of the named optional libraries too, except
        baselines that `failed` in earlier processes. Raises FailedBaseline if one fails in this
        process.
        """
        timing = BaselineTimer(self._session, self._problem, self._pool, failed)
        return [each for case in cases for each in timing.of_case(case, libraries)]

    def copy_gbps(self) -> float:
        """Measures the bandwidth of a large copy on this device, in GB/s; 0 if the device measures
        none."""
        return self._session.copy_gbps()

    def beside(self, job: TrialRequest) -> contextlib.AbstractContextManager[Beside | None]:
        """Starts the work of other processes on a champion; None for another candidate."""
        if not job.confirm or job.part == TIMING:
            return contextlib.nullcontext()
        return self._champions.beside(
            job.cases,
            sanitize="sanitizer" not in self._without,
            disturb="perturbation" not in self._without,
        )

    def prepare(self, job: TrialRequest) -> None:
        """Makes the trial's inputs, references and limits, before the candidate's time starts."""
        timed_alone = job.repeat or job.part == TIMING
        kinds = ("normal",) if timed_alone else self._problem.input_kinds
        self._make([(item.case, item.role) for item in job.cases], kinds, self._seed(job))

    def warm_up(self, cases: Sequence[Case]) -> None:
        """Makes normal inputs of the smallest case. See `Hello`."""
        if cases:
            self._make([(min(cases, key=self._pool.set_bytes), TIMED)], ("normal",), 0)

    def prepare_ahead(self, ahead: PrepareRequest) -> None:
        """Makes the inputs of a champion before its binaries have been compiled."""
        self._make(ahead.cases, self._problem.input_kinds, _CONFIRM_SEED + ahead.number)

    def _make(self, cases: Sequence[tuple[Case, str]], kinds: Sequence[str], seed: int) -> None:
        for case, role in cases:
            if role in WHEN_THERE_IS_TIME:
                continue
            for kind in kinds:
                self._pool.get(case, kind, seed)
            if role != EDGE:
                self._pool.get(case, "normal", seed + 1)
                self._pool.changed(case, seed)

    def run(
        self,
        job: TrialRequest,
        beside: Beside | None,
        tell: Callable[[str], None] = lambda step: None,
    ) -> Outcome:
        """Runs the whole gate and then the timing. A failure is an Outcome too. `tell` is called
        with each step."""
        self.doubtful = False
        self._began_s = time.monotonic()
        stages = Stages(tell, job.until_s)
        verdict = Verdict(list(job.skipped))
        measurements: list[Measurement] = []
        seed = self._seed(job)
        if changed := self._session.take_stock():
            self.doubtful = True  # an earlier candidate may have done it after its trial
            reason = f"an earlier kernel, or another program, {changed}"
            return Outcome(OutcomeKind.LAUNCH_ERROR, reason=reason)
        random_tests: list[Case] = []
        try:
            with stages.timed("load"):
                subjects, opponents = self._load(job.cases), self._load(job.rival)
                rivals = {item.case.label: subject for item, subject in opponents}
            self._build([*subjects, *opponents], job, seed, stages)
            if beside is not None:
                random_tests = self._check_champion(subjects, job, verdict, stages, beside)
            elif job.only_served:
                random_tests = self._launch_served(subjects, job, verdict, stages)
            elif not job.repeat and not job.part:
                self._examine(subjects, seed, verdict, stages)
            if verdict.passed and not job.only_served and job.part != CHECKS:
                with stages.timed("measure"):
                    measurements = self._measure(subjects, rivals, job, verdict, stages)
        except LaunchFailure as error:
            return Outcome(OutcomeKind.LAUNCH_ERROR, reason=str(error), stage_s=stages.seconds)
        except RuntimeError as error:
            fault = self._session.fault(error)
            if fault is None:
                raise
            self.tainted = fault.fatal
            self.doubtful = fault.kind is OutcomeKind.DEVICE_OOM
            where = f" ({stages.step})" if job.confirm else ""
            return Outcome(fault.kind, reason=f"{fault.reason}{where}", stage_s=stages.seconds)
        if verdict.kind in (OutcomeKind.WRONG_RESULT, OutcomeKind.NAN, OutcomeKind.OUT_OF_BOUNDS):
            self.doubtful = not self._pool.intact()
        measured = {i.case.label for i in job.cases if i.role in (TIMED, HELD_OUT)}
        if not job.audit and verdict.passed:
            verdict.checks = list(worth_keeping(verdict.checks, measured))
        outcome = outcome_of(verdict, measurements, stages.seconds, self._session.state())
        checked = (job.confirm and job.part != TIMING) or job.only_served
        if checked and verdict.passed:
            domain = self._champions.domain(job, random_tests)
            flags = (*outcome.flags, *((CUT_SHORT,) if stages.cut_short else ()))
            outcome = msgspec.structs.replace(outcome, domain=domain, flags=flags)
        return outcome

    def _check_champion(
        self,
        subjects: Sequence[Loaded],
        job: TrialRequest,
        verdict: Verdict,
        stages: Stages,
        beside: Beside,
    ) -> list[Case]:
        """A champion's checks before the timing. Returns the cases of random tests that passed."""
        seed = self._seed(job)
        random_tests: list[Case] = []
        with stages.timed("start"):
            self._check_start(subjects, job, seed, verdict)
        self._examine(subjects, seed, verdict, stages)
        if "alignment" not in self._without:
            with stages.timed("alignment"):
                self._champions.launch_aligned(subjects, seed, verdict, stages)
                self._check_quiet(verdict)
        if "random" not in self._without:
            with stages.timed("random_tests"):
                random_tests = self._test_randomly(subjects, seed, verdict, stages)
            random_tests += self._launch_served(subjects, job, verdict, stages)
        timed = [subject for item, subject in subjects if item.role == TIMED]
        disturbs = "perturbation" not in self._without
        rebuilt: list[Rebuilt] = []
        disturbs = disturbs and not self._champions.leave_undisturbed(verdict, stages.is_late())
        if disturbs and verdict.passed:  # now, while the tools still work
            with stages.timed("perturbation"):
                rebuilt = self._champions.load_rebuilt(timed, job.cases, beside)
        if verdict.passed:
            with stages.timed("sanitizer"):
                stages.cut_short |= not beside.judge(verdict, stages.left_s())
        # Launches that are disturbed on purpose come after the tools, which would slow them down.
        if disturbs and verdict.passed:
            with stages.timed("perturbation"):
                self._champions.disturb(timed, seed, verdict, rebuilt)
        return random_tests

    def _launch_served(
        self, subjects: Sequence[Loaded], job: TrialRequest, verdict: Verdict, stages: Stages
    ) -> list[Case]:
        """Launches at the sizes that a package could serve; returns the cases that passed."""
        with stages.timed("served_sizes"):
            made = self._champions.launch_served(
                subjects, self._seed(job), verdict, stages, self._without, job.served_s
            )
            self._check_quiet(verdict)
        return made

    def _examine(
        self, subjects: Sequence[Loaded], seed: int, verdict: Verdict, stages: Stages
    ) -> None:
        with stages.timed("verify"):
            self._verify(subjects, seed, verdict, stages)
            self._check_quiet(verdict)

    def _seed(self, job: TrialRequest) -> int:
        """The seed of the trial's inputs. In the search it is one of a few, at most as many as the
        pool can hold: of two at first, as a short search would spend its time on making inputs."""
        if job.thorough:
            return _CONFIRM_SEED + job.number
        trial_bytes = sum(self._pool.trial_bytes(item.case) for item in job.cases)
        seeds = min(_POOL_SEEDS, _FIRST_SEEDS + job.number // _TRIALS_PER_SEED)
        return job.number % max(1, min(seeds, self._session.pool_bytes // trial_bytes))

    def _load(self, cases: Sequence[TrialCase]) -> list[Loaded]:
        """Loads the kernels; a binary that several cases share is loaded once."""
        kernels: dict[tuple[str, str], Callable[..., object]] = {}
        subjects = []
        for item in cases:
            key = (item.binary, item.plan.entry)
            if key not in kernels:
                kernels[key] = self._session.load(Path(item.binary), item.plan)
            subjects.append((item, Subject(item.case, item.plan, kernels[key])))
        return subjects

    def _build(
        self, loaded: Sequence[Loaded], job: TrialRequest, seed: int, stages: Stages
    ) -> None:
        """Builds the kernels for the cases that are checked in any event, if no compiler has built
        them."""
        chosen = [each for item, each in loaded if item.role not in WHEN_THERE_IS_TIME]
        with stages.timed("build") if job.build_s else contextlib.nullcontext():
            for number, subject in enumerate(chosen if job.build_s else (), 1):
                stages.at("building the kernel for case", number, len(chosen))
                inputs = self._pool.get(subject.case, "normal", seed).inputs
                self._session.build(subject.kernel, subject.plan, inputs, job.build_s)

    def _verify(
        self, subjects: Sequence[Loaded], seed: int, verdict: Verdict, stages: Stages
    ) -> None:
        roles = [role for role in (TIMED, EDGE, HELD_OUT) if role not in self._without]
        examined = [each for role in roles for item, each in subjects if item.role == role]
        for number, subject in enumerate(examined, 1):
            stages.at("checking case", number, len(examined))
            self._gate.examine(subject, self._kinds, seed, verdict)

    def _check_start(
        self, subjects: Sequence[Loaded], job: TrialRequest, seed: int, verdict: Verdict
    ) -> None:
        """Checks a champion's first launches, before anything else is launched in its fresh
        process."""
        timed = [subject for item, subject in subjects if item.role == TIMED]
        for subject in timed if "start" not in self._without else ():
            limit_s = _START_S / len(timed)
            self._gate.start(subject, seed, verdict, limit_s=limit_s, draw=job.draw)

    def _test_randomly(
        self, subjects: Sequence[Loaded], seed: int, verdict: Verdict, stages: Stages
    ) -> list[Case]:
        """Runs the random tests and returns the cases that passed."""
        chosen = [subject for item, subject in subjects if item.role == RANDOM]
        order = in_order([self._elements(subject.case) for subject in chosen])
        made = run_random_tests(
            self._gate,
            [(number, chosen[number]) for number in order],
            self._random_kinds,
            seed,
            verdict,
            limit_s=_RANDOM_TESTS_S,
            longest_s=stages.left_s(),
            begins=lambda number: stages.at("random cases", number, len(chosen)),
        )
        self._check_quiet(verdict)
        stages.cut_short |= len(made) < len(chosen) and stages.is_late()
        return made

    def _elements(self, case: Case) -> tuple[int, int]:
        """The number of elements of the largest input, and of all tensors together."""
        counts = [(math.prod(s.shape), s.is_input) for s in self._problem.tensors(case)]
        inputs = (count for count, is_input in counts if is_input)
        return max(inputs, default=0), sum(count for count, _ in counts)

    def _random_kinds(self, case: Case, number: int) -> Sequence[str]:
        kinds = self._problem.random_kinds(case, number)
        return [each for each in kinds if each not in self._without]

    def _measure(
        self,
        subjects: Sequence[Loaded],
        rivals: Mapping[str, Subject],
        job: TrialRequest,
        verdict: Verdict,
        stages: Stages,
    ) -> list[Measurement]:
        repeat, seed = job.repeat > 0, self._seed(job)
        thorough = (job.confirm and not job.audit) or repeat
        settings = TimingSettings.champion() if thorough else TimingSettings.thorough()
        sample_us = self._session.champion_sample_us
        if not (thorough or rivals):
            settings = TimingSettings.fixed() if job.fixed_sampling else TimingSettings()
            sample_us = self._session.sample_us
        settings = dataclasses.replace(settings, sample_us=sample_us)
        timed = sum(item.role == TIMED for item, _ in subjects)
        measurements: list[Measurement] = []
        measured = [each for each in subjects if each[0].role in (TIMED, HELD_OUT)]
        for number, (item, subject) in enumerate(measured, 1):
            role, flops = item.role, item.flops
            if not verdict.passed or (role == HELD_OUT and stages.is_late()):
                break
            stages.at("timing case", number, len(measured))
            deciding = thorough and role == TIMED and not repeat
            own = settings.deciding(timed) if deciding else settings
            timer = CaseTimer(
                self._session,
                self._problem,
                self._pool,
                self._baselines,
                seed,
                watching="watch" not in self._without,
                draw=job.draw,
            )
            candidate = timer.place(self._gate, subject, own)
            rival = rivals.get(subject.case.label)
            needed = needed_speedup(job.contender, timed, measurements)
            measurement = timer.measure(
                candidate,
                timer.place(self._gate, rival, own) if rival else job.baselines[subject.case.label],
                contender_speedup=0.0 if thorough else needed,
                leader_speedup=needed,
                held_out=role == HELD_OUT,
                asking=thorough and "reuse" not in self._without,
                watched=functools.partial(self._gate.judge_watched, subject.case, verdict=verdict),
            )
            if "alter" not in self._without:
                self._gate.alter(subject, candidate.buffers, seed, verdict, draw=job.draw)
            # In the search a slow candidate would gain nothing by reusing results.
            contends = thorough or measurement.speedup_high >= needed
            tensors = self._problem.tensors(subject.case)
            near_peak = is_near_peak(measurement, flops, self._profile, tensors)
            suspicious = thorough and (near_peak or is_suspicious(measurement))
            self._check_timed(candidate, job, verdict, contends=contends, suspicious=suspicious)
            replay = functools.partial(self._gate.replay, seed=seed + 1, verdict=verdict)
            if "replay" not in self._without:
                replay(subject, candidate.sampler, candidate.buffers)
            if thorough and verdict.passed and not repeat:
                measurement, eager = timer.with_eager_times(measurement, candidate)
                if eager:
                    replay(subject, eager.sampler, eager.buffers, how="replayed eagerly,")
            candidate.sampler.run()  # threads that it left may rest until the next call
            self._session.synchronize()  # a fault now would be the next candidate's
            self._check_quiet(verdict, candidate.sampler.run)
            self._check_roofline(measurement, flops, verdict, subject.case)
            measurements.append(measurement)
            if repeat or not (thorough and verdict.passed):
                continue
            if cold := timer.measure_cold(subject, measurement):
                measurement, timed_cold = cold
                replay(subject, timed_cold.sampler, timed_cold.buffers, how="replayed cold,")
                self._check_roofline(measurement, flops, verdict, subject.case)
                measurements.append(measurement)
        return measurements

    def _check_timed(
        self,
        candidate: Placed,
        job: TrialRequest,
        verdict: Verdict,
        *,
        contends: bool,
        suspicious: bool,
    ) -> None:
        """The longer checks of timed launches: the more the time matters, the more of them."""
        case, watch = candidate.subject.case, candidate.watch
        assert watch is not None
        if job.confirm and not (job.audit or job.repeat) and "watch" not in self._without:
            watch_long_rows(self._gate, case, watch, verdict)
        if suspicious:
            audit(self._gate, case, watch, verdict)
        if contends and "reuse" not in self._without:
            reuse(case, watch, verdict)
        if contends and self._session.has_rows and "own clock" not in self._without:
            self._check_times(candidate, job, verdict)

    def _check_times(self, candidate: Placed, job: TrialRequest, verdict: Verdict) -> None:
        """Checks the times by a second clock, unless tensors need memory of their own."""
        if any(spec.is_far for spec in self._problem.tensors(candidate.subject.case)):
            return
        check_times(
            *(self._gate, self._session, self._pool, candidate.subject),
            seed=self._seed(job),
            verdict=verdict,
            call_us=candidate.sampler.time_us(),
            limit_s=_OWN_CLOCK_SHARE * (time.monotonic() - self._began_s),
            draw=job.draw,
        )

    def _check_quiet(self, verdict: Verdict, run: Callable[[], object] | None = None) -> None:
        if "quiet" in self._without:
            return
        left = self._session.left_running(run)
        self.tainted |= bool(left)
        if left and verdict.passed:
            verdict.kind, verdict.reason = OutcomeKind.LAUNCH_ERROR, f"the kernel {left}"

    def _check_roofline(
        self, measurement: Measurement, flops: int, verdict: Verdict, case: Case
    ) -> None:
        """Fails a candidate that is faster than the device can be."""
        if not verdict.passed:
            return
        reason = impossible(measurement, flops, self._profile, self._problem, case)
        if reason:
            verdict.kind = OutcomeKind.TOO_FAST
            verdict.reason = f"{measurement.case}: {reason}"


# Turns measurements into an outcome: a trial's fitness, its flags, and the speedup it needs.
#
# Says also which times are hard to believe, and which no device can reach.
_SUSPICIOUS_SPEEDUP = 10.0
_NEAR_PEAK = 0.85  # of the device's peak
_OF_8_BITS = 2.0
"""Tensor cores make so many products of 8 bits in the time of one in half precision."""
_CACHED = 2.0  # an L2 cache that does not work by LRU still holds some of the rotating inputs


def is_suspicious(measurement: Measurement) -> bool:
    """Whether the measured speedup is hard to believe."""
    return measurement.speedup > _SUSPICIOUS_SPEEDUP


def peak_gflops(profile: DeviceProfile, tensors: Sequence[TensorSpec]) -> float:
    """The device's peak for these tensors, in GFLOP/s; 0 if it is unknown. A product runs at the
    rate of its wider operand, so the 8-bit peak counts only if two inputs have 8 bits, or the only
    input has."""
    inputs = [spec for spec in tensors if spec.is_input]
    narrow = sum(ELEMENT_BYTES[spec.dtype] == 1 for spec in inputs)
    return profile.peak_gflops * (_OF_8_BITS if narrow >= min(2, len(inputs)) else 1.0)


def is_near_peak(
    measurement: Measurement, flops: int, profile: DeviceProfile, tensors: Sequence[TensorSpec]
) -> bool:
    peak = peak_gflops(profile, tensors)
    return peak > 0 and _gflops(measurement, flops) > _NEAR_PEAK * peak


def impossible(
    measurement: Measurement, flops: int, profile: DeviceProfile, problem: Problem, case: Case
) -> str:
    """Why no correct kernel can be as fast as this measurement; "" if one can. A kernel cannot
    exceed the device's peak GFLOP/s nor, on cold inputs, the memory's peak GB/s: caches may serve
    some of the bytes, but not most."""
    gbps = problem.bytes_moved(case) / measurement.time_us / 1e3
    peak_gbps = float(profile.attributes.get("memory_gbps", 0.0))
    if measurement.cache == "cold" and peak_gbps and gbps > _CACHED * peak_gbps:
        return f"{gbps:.0f} GB/s on cold inputs is more than the memory's peak of {peak_gbps:.0f}"
    gflops, peak = _gflops(measurement, flops), peak_gflops(profile, problem.tensors(case))
    if peak and gflops > peak:
        return f"{gflops:.0f} GFLOP/s is more than the device's peak of {peak:.0f}"
    return ""


def _gflops(measurement: Measurement, flops: int) -> float:
    return flops / measurement.time_us / 1e3


def needed_speedup(contender: float, timed: int, measured: Sequence[Measurement]) -> float:
    """The speedup that the last timed case must reach so that the mean over all `timed` cases
    reaches `contender` (a mean of ln speedup). 0 for earlier cases, because the others are not
    known yet."""
    measured = [m for m in measured if m.counts]
    if len(measured) != timed - 1:
        return 0.0
    so_far = sum(math.log(m.speedup_high) for m in measured)
    return math.exp(min(timed * contender - so_far, 100.0))


def outcome_of(
    verdict: Verdict,
    measurements: list[Measurement],
    stage_s: dict[str, float],
    state: DeviceState,
) -> Outcome:
    resources: NamedFigures = {"device": state}
    if verdict.kind is not None:
        return Outcome(
            verdict.kind,
            reason=verdict.reason,
            checks=tuple(verdict.checks),
            stage_s=stage_s,
            resources=resources,
        )
    timed = [m for m in measurements if m.counts]
    flags = {
        "suspicious": any(map(is_suspicious, measurements)),
        "throttled": any(m.throttled for m in measurements),
        "racecheck": any(check.status == "failed" for check in verdict.checks),
    }
    return Outcome(
        OutcomeKind.OK,
        fitness=_mean_log([m.speedup for m in timed]),
        fitness_low=_mean_log([m.speedup_low for m in timed]),
        fitness_high=_mean_log([m.speedup_high for m in timed]),
        flags=tuple(name for name, holds in flags.items() if holds),
        measurements=tuple(measurements),
        checks=tuple(verdict.checks),
        stage_s=stage_s,
        resources=resources,
    )


def _mean_log(speedups: Sequence[float]) -> float:
    """0, a speedup of 1, if nothing was timed."""
    if not speedups:
        return 0.0
    return sum(math.log(max(s, 1e-12)) for s in speedups) / len(speedups)
