"""`evotune explain`: measures the missing parts, keeps them in the run, and explains."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from evotune.backends import registry
from evotune.backends.base.gathered import Work
from evotune.errors import EnvironmentProblem, EvotuneError, RunLocked, SpaceError, UsageError
from evotune.explain._measuring import Gathering
from evotune.explain._sides import Side, machine_on, number_in, read_run, side_of
from evotune.explain._subjects import ablation_of, chosen_subject
from evotune.explain._suggestions import with_tries
from evotune.explain._trial_table import TrialTable
from evotune.explain._tries import try_suggestions
from evotune.explain.assembling import SpaceView, explain_data
from evotune.explain.explanation import Explanation
from evotune.explain.predicting import LaunchFigures, Predictor
from evotune.report.data import RunData
from evotune.runs.evidence_gathering import Access
from evotune.runs.folder import RunFolder
from evotune.search.trial_model import Difference
from evotune.trial import Configuration, Value


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """- `trial`: its number; None for the leaderboard's first.
    - `against`: baseline, default, a trial's number, RUN:NUMBER or RUN; "" for none.
    - `measure`: None measures where the run's device is here. The machine code is looked at
      without the device too. False compiles and launches nothing.
    - `tries`: measures the suggestions that are configurations.
    - `effects`: whether measuring includes each choice in turn with the trial, which takes longest.
    - `minutes`: measuring takes about so long at most, tries apart; None: as long as the backend
      has it. What is left is named, and measured the next time.
    """

    trial: int | None = None
    against: str = ""
    measure: bool | None = None
    tries: bool = False
    effects: bool = True
    minutes: float | None = None


def explain_run(
    run: RunFolder, request: ExplainRequest, note: Callable[[str], object] = lambda text: None
) -> Explanation:
    """Explains a trial of the run; `note` gets a line before each measurement.

    UsageError for a trial, a run or a side that is not there, and for `tries` with `measure` False;
    EnvironmentProblem when something is to be measured and the run's device is not here; RunLocked
    while another process works on the run and something is to be measured.
    """
    if request.tries and request.measure is False:
        raise UsageError("--no-measure and --try exclude each other")
    named = (request.trial, number_in(request.against))
    wanted = [number for number in named if number is not None]
    data = read_run(run, wanted)
    subject = chosen_subject(data, request.trial)
    side = side_of(run, data, subject, request.against)
    demanded = request.measure is True or request.tries
    access, missing = _access(run, data, demanded=demanded)
    if demanded:
        _require_device(data, access, missing)
    if request.measure is not False and access is not None:
        before = explain_data(data, subject.trial.number, view=_view(access))
        known = (before.over_space.pairs, before.effects)
        minutes = request.minutes or _usual_minutes(access)
        gathering = Gathering(run, subject, access, note, missing, *known, seconds=60 * minutes)
        _gather(gathering, side, request)
        data = read_run(run, wanted)
    other = machine_on(side, subject, read_run(side.run, wanted)) if side is not None else None
    if other is not None and other.time_us is None:
        missing.append(f"the speed of {other.name}: it was not timed on this trial's case")
    if other is not None and other.gathered is not None and other.gathered.case != subject.case:
        missing.append(f"counters of {other.name}: the known ones are of {other.gathered.case}")
    view = _view(access) if access is not None else None
    found = explain_data(data, subject.trial.number, view=view, other=other, missing=missing)
    if request.tries:
        assert access is not None
        try_suggestions(run, access.reopened, subject, found.next, note)
        stored = read_run(run).meta.get("tries") or ()
        tried = with_tries(found.next, subject.configuration, stored)
        found = msgspec.structs.replace(found, next=tried)
    return found


def predict_changes(
    run: RunFolder, start: Mapping[str, Value], changed: Sequence[Mapping[str, Value]]
) -> list[Difference | None]:
    """ln of the time of `start` / the time of each changed configuration, predicted from the run's
    trials; None where a value was neither tried nor is in the space. UsageError for a run with too
    few valid trials."""
    data = read_run(run)
    access, _ = _access(run, data)
    view = _view(access) if access is not None else None
    table = TrialTable.of(data.trials, view.space.parameters if view is not None else ())
    try:
        predictor = Predictor(table, view.launch_figures if view is not None else None)
    except ValueError as error:
        raise UsageError(f"run {run.id}: {error}") from error
    return predictor.changes(start, changed)


def _access(
    run: RunFolder, data: RunData, *, demanded: bool = False
) -> tuple[Access | None, list[str]]:
    """The run opened again, and why not. Where it is `demanded`, code that nobody agreed to execute
    is an error, as it is for the other commands."""
    if data.recorded:
        return None, []
    try:
        return Access.to(run), []
    except EvotuneError as error:
        if demanded and isinstance(error, UsageError | SpaceError):
            raise
        return None, [f"the space's files were not read: {error}"]


def _usual_minutes(access: Access) -> float:
    return registry.named(access.reopened.setup.profile.backend).explain_minutes


def _gather(gathering: Gathering, side: Side | None, request: ExplainRequest) -> None:
    try:
        gathering.evidence(side, demanded=bool(request.measure))
        if gathering.access.away:
            gathering.missing.append(f"nothing was launched: {gathering.access.away}")
        elif request.effects:
            if not ablation_of(read_run(gathering.run), gathering.subject):
                gathering.ablation()
            gathering.costliest()
    except RunLocked as error:
        if request.measure:
            raise
        gathering.missing.append(f"nothing was measured: {error}")


def _require_device(data: RunData, access: Access | None, missing: Sequence[str]) -> None:
    if data.recorded:
        raise UsageError(f"run {data.id} replays a recording: there is no kernel to measure")
    if access is None:
        raise EnvironmentProblem("; ".join(missing))
    if access.away:
        raise EnvironmentProblem(access.away)


def _view(access: Access) -> SpaceView:
    def work_of(configuration: Configuration, label: str) -> Work | None:
        try:
            return access.work_of(access.timed_job(configuration, label))
        except EvotuneError:
            return None

    figures = functools.partial(launch_figures, access)
    return SpaceView(access.reopened.space, work_of, figures)


def launch_figures(access: Access, configuration: Configuration) -> LaunchFigures:
    """{} for a configuration that cannot run."""
    try:
        job = access.timed_job(configuration)
    except EvotuneError:
        return {}
    launches = job.plan.launches
    if not launches:
        return {"launches": 1.0}
    largest = max(launches, key=lambda launch: launch.threads)
    blocks = math.prod(largest.grid)
    figures = {
        "launches": float(len(launches)),
        "threads": float(largest.threads),
        "blocks": float(blocks),
        "shared_bytes": float(largest.shared_bytes),
        "bytes_in_flight": largest.shared_bytes / max(1, largest.threads),
    }
    return {**figures, **_on_device(figures, access.reopened.setup.profile.attributes)}


def _on_device(figures: LaunchFigures, attributes: Mapping[str, Value]) -> LaunchFigures:
    """Resident blocks and warps of a multiprocessor, and its idle time, as far as threads and
    shared memory decide: registers are known only after compiling. {} on a CPU."""

    def limit(name: str) -> int:
        found = attributes.get(name, 0)
        return int(found) if isinstance(found, int) else 0

    multiprocessors, most_threads = limit("multiprocessors"), limit("threads_per_multiprocessor")
    if not multiprocessors or not most_threads or not figures["threads"]:
        return {}
    room, reserved = (
        limit(f"{name}")
        for name in ("shared_bytes_per_multiprocessor", "reserved_shared_bytes_per_block")
    )
    resident = max(1, most_threads // int(figures["threads"]))
    if room:
        resident = max(1, min(resident, int(room // (figures["shared_bytes"] + reserved or 1))))
    waves = figures["blocks"] / (multiprocessors * resident)
    each = min(float(resident), max(1.0, figures["blocks"] / multiprocessors))
    rounds = math.ceil(figures["blocks"] / multiprocessors)
    return {
        "resident": float(resident),
        "waves": waves,
        "warps": each * figures["threads"] / 32,
        "idle": 1 - figures["blocks"] / (rounds * multiprocessors),
    }
