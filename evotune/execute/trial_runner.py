"""One trial inside the device worker: load, verify, measure, replay.

Runs in a killable process: an infinite loop or a segmentation fault here ends the trial,
never the run.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from evotune.device.launch import LaunchPlan
from evotune.device.profile import DeviceProfile
from evotune.device.protocol import LaunchFailure, Session
from evotune.execute.protocol import EDGE, HELD_OUT, TIMED, BaselineTiming
from evotune.measure.paired import TimingSettings, measure_paired, time_in_turn_us
from evotune.problems.base import Case, Problem, Tensors
from evotune.trial import Check, Json, Measurement, Outcome, OutcomeKind
from evotune.verify.accuracy import errors_against
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool

_POOL_SEEDS = 4
_CONFIRM_SEED = 1_000_000  # champions see inputs the search never saw
_SUSPICIOUS_SPEEDUP = 10.0


class TrialRunner:
    """Holds the session, the problem and the input pool of one worker."""

    def __init__(
        self, session: Session, profile: DeviceProfile, problem: Problem, *, deterministic: bool
    ) -> None:
        self._session = session
        self._profile = profile
        self._problem = problem
        self._pool = InputPool(problem)
        self._gate = Gate(session, problem, self._pool, deterministic=deterministic)
        self._baselines: dict[tuple[str, str, int], Callable[[], Tensors]] = {}
        self.tainted = False
        """A candidate left something running: this process must measure nothing more."""

    def time_baselines(self, cases: Sequence[Case]) -> list[BaselineTiming]:
        """Every baseline on every case, timed alone and held to the same error limits."""
        timings = []
        for case in cases:
            inputs = self._pool.get(case, "normal", 0)
            calls = self._problem.baselines(case, self._on_device(case, 0))
            times_us = time_in_turn_us(self._session, calls)
            for name, call in calls.items():
                errors = {
                    out: errors_against(value.cpu(), inputs.reference[out])
                    for out, value in call().items()
                }
                passed = all(inputs.limits(out, e).hold(e) for out, e in errors.items())
                timings.append(BaselineTiming(case.label, name, times_us[name], passed))
        return timings

    def prepare(self, job: Json) -> None:
        """Makes the trial's inputs, references and limits: work that is not the candidate's."""
        seed = _seed(job)
        for item in job["cases"]:
            case = Case(item["label"], item["symbols"])
            for kind in self._problem.input_kinds:
                self._pool.get(case, kind, seed)
            if item["role"] != EDGE:
                self._pool.get(case, "normal", seed + 1)
                self._pool.altered(case, seed + 1)

    def run(self, job: Json) -> Outcome:
        """The whole gate, then the timing; a failure is an Outcome."""
        stage_s: dict[str, float] = {}
        verdict = Verdict()
        measurements: list[Measurement] = []
        seed = _seed(job)
        try:
            with _timed(stage_s, "load"):
                subjects = self._load(job["cases"])
            with _timed(stage_s, "verify"):
                self._verify(subjects, seed, verdict)
                self._check_quiet(verdict)
            if verdict.passed:
                with _timed(stage_s, "measure"):
                    measurements = self._measure(subjects, job, seed, verdict)
                    self._check_quiet(verdict)
        except LaunchFailure as error:
            return Outcome(OutcomeKind.LAUNCH_ERROR, reason=str(error), stage_s=stage_s)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            # PyTorch has a class of its own for this on a GPU, but not on the CPU.
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in reason:
                return Outcome(OutcomeKind.DEVICE_OOM, reason=reason, stage_s=stage_s)
            raise
        return _outcome(verdict, measurements, stage_s, self._session.state())

    def _load(self, cases: Json) -> list[tuple[str, int, Subject]]:
        """(role, FLOPs, subject) for each case; a binary shared by cases is loaded once."""
        kernels: dict[tuple[str, str], Callable[..., object]] = {}
        subjects = []
        for item in cases:
            plan = LaunchPlan.from_json(item["plan"])
            key = (item["binary"], plan.entry)
            if key not in kernels:
                kernels[key] = self._session.load(Path(item["binary"]), plan)
            case = Case(item["label"], item["symbols"])
            subjects.append((item["role"], item["flops"], Subject(case, plan, kernels[key])))
        return subjects

    def _verify(
        self, subjects: Sequence[tuple[str, int, Subject]], seed: int, verdict: Verdict
    ) -> None:
        for role in (TIMED, EDGE, HELD_OUT):
            for mine, _, subject in subjects:
                if mine == role:
                    for kind in self._problem.input_kinds:
                        self._gate.examine(subject, kind, seed, verdict)

    def _measure(
        self,
        subjects: Sequence[tuple[str, int, Subject]],
        job: Json,
        seed: int,
        verdict: Verdict,
    ) -> list[Measurement]:
        settings = TimingSettings.thorough() if job["confirm"] else TimingSettings()
        generator = torch.Generator().manual_seed(seed)
        timed = sum(role == TIMED for role, _, _ in subjects)
        measurements: list[Measurement] = []
        for role, flops, subject in subjects:
            if role == EDGE or not verdict.passed:
                continue
            inputs = self._pool.get(subject.case, "normal", seed)
            buffers = self._gate.buffers(subject, inputs)
            launch = self._session.bind(subject.kernel, subject.plan, buffers.pointers)
            name = job["baselines"][subject.case.label]
            measurement = measure_paired(
                self._session,
                launch,
                self._baseline(subject.case, name, seed),
                case=subject.case.label,
                baseline_name=name,
                settings=settings,
                contender_speedup=_needed_speedup(job["contender"], timed, measurements),
                held_out=role == HELD_OUT,
                before_sample=functools.partial(buffers.nudge, generator),
            )
            self._gate.replay(subject, launch, buffers, seed + 1, verdict)
            self._check_roofline(measurement, flops, verdict)
            measurements.append(measurement)
        return measurements

    def _check_quiet(self, verdict: Verdict) -> None:
        left = self._session.left_running()
        if left:
            self.tainted = True
        if left and verdict.passed:
            verdict.kind, verdict.reason = OutcomeKind.LAUNCH_ERROR, f"the kernel {left}"

    def _check_roofline(self, measurement: Measurement, flops: int, verdict: Verdict) -> None:
        peak_flops = self._profile.peak_gflops * 1e9
        if verdict.passed and peak_flops and flops / peak_flops > measurement.time_us * 1e-6:
            verdict.kind = OutcomeKind.TOO_FAST
            verdict.reason = (
                f"{measurement.case}: {flops / measurement.time_us / 1e3:.0f} GFLOP/s is more "
                f"than the device's peak of {self._profile.peak_gflops:.0f}"
            )

    def _baseline(self, case: Case, name: str, seed: int) -> Callable[[], Tensors]:
        key = (case.label, name, seed)
        if key not in self._baselines:
            self._baselines[key] = self._problem.baselines(case, self._on_device(case, seed))[name]
        return self._baselines[key]

    def _on_device(self, case: Case, seed: int) -> Tensors:
        inputs = self._pool.get(case, "normal", seed).inputs
        return {name: value.to(self._session.torch_device) for name, value in inputs.items()}


def _needed_speedup(contender: float, timed: int, measured: Sequence[Measurement]) -> float:
    """The speedup that the last timed case must reach for the mean over all `timed` cases to
    reach `contender` (a mean of ln speedup); 0 before the last, where nothing can be said."""
    if len(measured) != timed - 1:
        return 0.0
    so_far = sum(math.log(m.speedup_high) for m in measured)
    return math.exp(min(timed * contender - so_far, 100.0))


def _seed(job: Json) -> int:
    if job["confirm"]:
        return int(_CONFIRM_SEED + job["number"])
    return int(job["number"] % _POOL_SEEDS)


@contextlib.contextmanager
def _timed(stage_s: dict[str, float], stage: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        stage_s[stage] = time.monotonic() - started


def _outcome(
    verdict: Verdict, measurements: list[Measurement], stage_s: dict[str, float], state: Json
) -> Outcome:
    resources = {"device": dict(state)}
    if verdict.kind is not None:
        return Outcome(
            verdict.kind,
            reason=verdict.reason,
            checks=tuple(verdict.checks),
            stage_s=stage_s,
            resources=resources,
        )
    timed = [m for m in measurements if not m.held_out]
    suspicious = any(m.speedup > _SUSPICIOUS_SPEEDUP for m in measurements)
    return Outcome(
        OutcomeKind.OK,
        fitness=_mean_log([m.speedup for m in timed]),
        fitness_low=_mean_log([m.speedup_low for m in timed]),
        fitness_high=_mean_log([m.speedup_high for m in timed]),
        flags=("suspicious",) if suspicious else (),
        measurements=tuple(measurements),
        checks=_worst_checks(verdict.checks, {m.case for m in measurements}),
        stage_s=stage_s,
        resources=resources,
    )


def _mean_log(speedups: Sequence[float]) -> float:
    return sum(math.log(max(s, 1e-12)) for s in speedups) / len(speedups)


def _worst_checks(checks: Sequence[Check], measured: set[str]) -> tuple[Check, ...]:
    """The check nearest its limit for each measured case, and one for all edge shapes."""
    worst: dict[str, Check] = {}
    for check in checks:
        key = check.case if check.case in measured else ""
        if key not in worst or _closeness(check) > _closeness(worst[key]):
            worst[key] = check
    return tuple(worst.values())


def _closeness(check: Check) -> float:
    """Share of the error limits that a passed check used."""
    shares = [
        error / limit
        for error, limit in (
            (check.max_error, check.max_limit),
            (check.rms_error, check.rms_limit),
        )
        if error is not None and limit
    ]
    return max(shares, default=0.0)
