"""Makes an explanation from a run's store; nothing is compiled, launched or written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from evotune.backends import registry
from evotune.backends.base.evidence import Ceilings, Evidence, GatheredEvidence, Work
from evotune.explain._space_effects import (
    ablation_steps,
    cliffs_of,
    effects_of,
    hopeless_values,
    importance_of,
    marginal_differences,
    marginals_of,
    pairs_of,
)
from evotune.explain.explanation import Explanation
from evotune.explain.findings import Effect, Limiter, MachineCode, OverSpace, Roofline
from evotune.explain.limiter_rules import PTX, Case, limiter_of
from evotune.explain.machine_differences import Machine, against_of, telling_line
from evotune.explain.measured_pairs import TrialTable, is_pair, with_measurements
from evotune.explain.predicting import LaunchFigures, Predictor
from evotune.explain.roofline import (
    ceilings_of,
    largest_launch,
    launch_counters,
    roofline_of,
)
from evotune.explain.sentences import gain_text, held_text, limiter_words, sure_gains
from evotune.explain.subjects import (
    Subject,
    ablation_of,
    begun_ablation_of,
    chosen_subject,
    evidence_for,
    machine_of,
    of_one_model,
    trial_like,
)
from evotune.explain.suggestions import Sources, suggestions_of, with_tries
from evotune.report import wording
from evotune.report.data import RunData
from evotune.search.gaussian_process import TrialModel
from evotune.space.bound import BoundSpace
from evotune.store.facts import Ablation
from evotune.timing.processes import TOO_NOISY
from evotune.trial import Configuration, Json
from evotune.util.commands import run_command
from evotune.util.words import counted

_BECAUSE = 6  # effects for which the difference in the machine is looked up
_LEAST_VALID = 8  # trials for effects over the space


@dataclass(frozen=True, slots=True)
class SpaceView:
    """Facts from the space's own files, if these were read.

    - `space`: the bound space.
    - `work_of`: returns the problem's work on a case, given a configuration and the case's label;
      None if the configuration cannot run on the case.
    - `launch_figures`: see `LaunchFigures`.
    """

    space: BoundSpace
    work_of: Callable[[Configuration, str], Work | None]
    launch_figures: Callable[[Configuration], LaunchFigures]


@dataclass(frozen=True, slots=True)
class TrialStudy:
    """What the trials of one device model show about the subject. It does not depend on
    measurements after the search, so an explanation makes it only once.

    - `over_space`: the effects over the space without the cliffs, which need the ablation.
    - `neighbours`: None if the space's files were not read, or if the subject is not valid in the
      space.
    """

    subject: Subject
    view: SpaceView | None
    table: TrialTable
    predictor: Predictor | None
    neighbours: Sequence[Configuration] | None
    over_space: OverSpace

    @classmethod
    def of(cls, data: RunData, subject: Subject, view: SpaceView | None) -> TrialStudy:
        trials = of_one_model(data, subject).trials
        table = TrialTable.of(trials, view.space.parameters if view is not None else ())
        model = fitted_model(table)
        predictor = None
        if model is not None:
            predictor = Predictor(table, view.launch_figures if view is not None else None)
        neighbours = None
        if view is not None and view.space.is_valid(subject.configuration):
            neighbours = view.space.neighbours(subject.configuration)
        over_space = _over_space(table, model, subject, view)
        return cls(subject, view, table, predictor, neighbours, over_space)

    def effects(self, ablation: Ablation | None) -> tuple[Effect, ...]:
        """The worth of the subject's choices: measured ones from the ablation, else from trials or
        the model."""
        return effects_of(self.subject.trial, ablation, self.table, self.predictor, self.neighbours)


def explain_data(
    data: RunData,
    number: int | None = None,
    *,
    view: SpaceView | None = None,
    other: Machine | None = None,
    missing: Sequence[str] = (),
    study: TrialStudy | None = None,
) -> Explanation:
    """Explains trial `number`, or the leaderboard's first one.

    - `other`: the candidate to compare the trial with.
    - `study`: the trial's study, if it was made before.

    Raises UsageError if the run has no such valid trial.
    """
    subject = study.subject if study is not None else chosen_subject(data, number)
    study = study or TrialStudy.of(data, subject, view)
    view, table, predictor = study.view, study.table, study.predictor
    data = of_one_model(data, subject)
    kept = data.facts.evidence
    gathered = evidence_for(kept, subject.configuration, subject.case)
    whole, begun = ablation_of(data.facts, subject), begun_ablation_of(data.facts, subject)
    ablation = whole or begun
    known = [one.evidence for one in (gathered, *kept) if one is not None]
    ceilings = ceilings_of(known, data.facts.device, data.facts.baselines.copy_gbps)
    roofline = _roofline(data, subject, gathered, ceilings, view)
    case = Case(roofline, gathered, data.facts.device.attributes)
    limiter = limiter_of(case)
    effects = _with_reasons(data, subject, kept, study.effects(ablation), ablation)
    cliffs = cliffs_of(table, ablation_steps(ablation), case.attributes)
    over_space = msgspec.structs.replace(study.over_space, cliffs=cliffs)
    mine = machine_of(f"trial {subject.trial.number}", subject, kept)
    sources = Sources(
        case=case,
        limiter=limiter,
        effects=effects,
        table=table,
        predictor=predictor,
        champion=subject.trial,
        space=view.space if view is not None else None,
        launch_figures=view.launch_figures if view is not None else None,
    )
    return Explanation(
        run=data.id,
        space=data.space,
        trial=subject.trial.number,
        configuration=subject.configuration.to_json(),
        device=data.facts.device.name,
        time_us=subject.time_us,
        speedup=subject.speedup,
        headline=_headline(subject, limiter, effects),
        limiter=limiter,
        roofline=roofline,
        counters=_counters(gathered),
        machine_code=_machine_code(gathered),
        effects=effects,
        over_space=_with_pairs(over_space, case, subject, kept, ablation),
        against=against_of(mine, other) if other is not None else None,
        next=with_tries(suggestions_of(sources), subject.configuration, data.facts.tries),
        missing=(
            *missing,
            *(roofline.exceeded if roofline is not None else ()),
            *(f"ceilings: {note}" for note in ceilings.notes if roofline is not None),
            *missing_parts(data, gathered, ablation, other, begun=not whole),
        ),
    )


def fitted_model(table: TrialTable) -> TrialModel | None:
    """The search's model of a run's valid trials; None if there are too few."""
    if len(table.valid) < _LEAST_VALID or not table.parameters:
        return None
    configurations = [table.varied(trial.configuration) for trial in table.valid]
    return TrialModel(table.parameters, configurations, table.fitness.tolist())


def _roofline(
    data: RunData,
    subject: Subject,
    gathered: GatheredEvidence | None,
    ceilings: Ceilings,
    view: SpaceView | None,
) -> Roofline | None:
    if not subject.time_us or not subject.case:
        return None
    work = gathered.work if gathered is not None and gathered.case == subject.case else None
    if work is None and view is not None:
        work = view.work_of(subject.configuration, subject.case)
    if work is None:
        return None
    evidence = gathered.evidence if gathered is not None else None
    launches = 0
    if view is not None:
        launches = int(view.launch_figures(subject.configuration).get("launches", 0))
    return roofline_of(
        subject.case,
        subject.time_us,
        work,
        dtype=data.facts.problem.dtype,
        evidence=evidence,
        ceilings=ceilings,
        attributes=data.facts.device.attributes,
        launches=launches,
        exponential_flops=registry.named(data.facts.device.backend).exponential_flops,
    )


def _counters(gathered: GatheredEvidence | None) -> Mapping[str, Json]:
    evidence = gathered.evidence if gathered is not None else None
    counters = launch_counters(evidence)
    if not counters:
        reason = _why(evidence, "counters") or "not measured"
        return {"unavailable": reason}
    found: dict[str, Json] = msgspec.to_builtins(counters[0])
    return found


def _machine_code(gathered: GatheredEvidence | None) -> MachineCode | None:
    launch = largest_launch(gathered.evidence) if gathered is not None else None
    view = launch.static if launch is not None else None
    if launch is None or view is None:
        return None
    resident = launch.occupancy
    return MachineCode(
        kernel=launch.kernel,
        source=view.source,
        instructions=view.loop_instructions or view.instructions,
        in_loops=bool(view.loop_instructions),
        registers=view.registers,
        spilled_bytes=view.spill_load_bytes + view.spill_store_bytes,
        warps=resident.warps if resident is not None else None,
        max_warps=resident.max_warps if resident is not None else None,
        bound_by=resident.bound_by if resident is not None else "",
    )


def _why(evidence: Evidence | None, part: str) -> str:
    return evidence.unavailable.get(part, "") if evidence is not None else ""


def _over_space(
    table: TrialTable,
    model: TrialModel | None,
    subject: Subject,
    view: SpaceView | None,
) -> OverSpace:
    found = OverSpace(
        trials=len(table.trials),
        valid=len(table.valid),
        hopeless=hopeless_values(table, view.space if view is not None else None),
    )
    if model is None:
        return found
    marginals = marginal_differences(table, model)
    importance = importance_of(table, {name: ds for name, (_, ds) in marginals.items()})
    return msgspec.structs.replace(
        found,
        importance=importance,
        marginals=marginals_of(table, marginals),
        pairs=pairs_of(table, model, subject.configuration, importance),
    )


def _counted_only(roofline: Roofline, gathered: GatheredEvidence) -> Roofline:
    """The roofline of another configuration by its counters alone, as its time is not known."""
    return roofline_of(
        roofline.case,
        roofline.time_us,
        Work(operations=0, bytes_moved=0),
        dtype="",
        evidence=gathered.evidence,
        ceilings=gathered.evidence.ceilings,
        attributes={},
    )


def _with_pairs(
    over: OverSpace,
    case: Case,
    subject: Subject,
    kept: Sequence[GatheredEvidence],
    ablation: Ablation | None,
) -> OverSpace:
    """Adds the pairs' measurements, and the limiter while the other choice is changed, which
    explains why a choice that pays now gains nothing then."""
    found = []
    for pair in with_measurements(over.pairs, ablation, subject.configuration):
        changed = {**subject.configuration, pair.other: pair.other_value}
        there = evidence_for(kept, changed, subject.case)
        because = ""
        if there is not None and case.roofline is not None:
            name = limiter_of(
                Case(_counted_only(case.roofline, there), there, case.attributes)
            ).name
            own = wording.configuration_text({pair.other: pair.other_value})
            because = f"with {own} it is limited by {limiter_words(name)}" if name else ""
        found.append(msgspec.structs.replace(pair, because=because) if because else pair)
    return msgspec.structs.replace(over, pairs=tuple(found))


def _with_reasons(
    data: RunData,
    subject: Subject,
    kept: Sequence[GatheredEvidence],
    effects: Sequence[Effect],
    ablation: Ablation | None,
) -> tuple[Effect, ...]:
    """The largest measured effects with the difference in the machine that goes with them."""
    mine = machine_of("this", subject, kept)
    figures = {
        (row.parameter, repr(row.after)): row.resources
        for row in (ablation.rows if ablation else ())
        if not is_pair(row)
    }
    found, looked_up = [], 0
    for effect in effects:
        because = ""
        if effect.worth is not None and effect.basis != "model" and looked_up < _BECAUSE:
            looked_up += 1
            changed = {**subject.configuration, effect.parameter: effect.source, **effect.also}
            trial = trial_like(data, changed)
            resources = figures.get((effect.parameter, repr(effect.source))) or (
                trial.outcome.resources if trial is not None else {}
            )
            evidence = evidence_for(kept, changed, subject.case)
            there = Machine("", changed, None, evidence, resources)
            because = telling_line(mine, there, other_is_slower=effect.worth > 1)
        found.append(msgspec.structs.replace(effect, because=because) if because else effect)
    return tuple(found)


def _headline(subject: Subject, limiter: Limiter, effects: Sequence[Effect]) -> str:
    time = wording.time_text(subject.time_us) if subject.time_us else "an unknown time"
    what = f"Trial {subject.trial.number} takes {time}"
    if subject.case:
        what += f" on {subject.case}"
    if subject.speedup is not None:
        what += f", {subject.speedup:.2f}x the speed of {subject.baseline}"
        low, high = subject.interval
        if low <= 1 <= high:
            what += f" (not surely: the 95% interval is {low:.2f} to {high:.2f})"
    parts = [f"{what}.", *_over_cases(subject)]
    if TOO_NOISY in subject.outcome.flags:
        parts.append(
            "It is flagged too_noisy: its processes differ by more than a tenth, so its speed says "
            "nothing."
        )
    elif not subject.confirmed and subject.speedup is not None:
        parts.append("It was not confirmed in a fresh process.")
    parts.append(held_text(limiter))
    gains = sure_gains(effects)
    if gains:
        because = f" ({gains[0].because})" if gains[0].because else ""
        parts.append(f"Its most valuable choice is {gain_text(gains[0])}{because}.")
    return " ".join(parts)


def _over_cases(subject: Subject) -> Iterator[str]:
    """Which of several cases is explained, and the speedup over all of them."""
    cases = [measured for measured in subject.outcome.measurements if measured.counts]
    if len(cases) > 1 and subject.outcome.fitness is not None:
        speedup = math.exp(subject.outcome.fitness)
        yield f"Over its {len(cases)} cases the speedup is {speedup:.2f}x in the geometric mean."
        yield f"The limiter is that of {subject.case}, the worth of its choices is over all cases."


# The parts of an explanation that are missing, each with its reason.
_PARTS: Final = {"static": "machine code"}  # of evidence, in the words of the documentation


def missing_parts(
    data: RunData,
    gathered: GatheredEvidence | None,
    ablation: Ablation | None,
    other: Machine | None,
    *,
    begun: bool = False,
) -> list[str]:
    """A line for each part that was not measured, with the reason. `begun`: whether the ablation
    has begun and not ended."""
    found = []
    if data.recorded:
        return ["a recorded run has no kernel: no counters, no machine code, no ablation"]
    if gathered is None:
        found.append("counters and machine code of this trial: not measured yet")
    else:
        found += [
            f"{_PARTS.get(part, part)}: {reason}"
            for part, reason in gathered.evidence.unavailable.items()
        ]
        launches = gathered.evidence.launches
        if any(one.static is not None and one.static.source == PTX for one in launches):
            found.append(
                "machine code: PTX was read in its place, since no disassembler read it: "
                "pip install 'evotune[explain]'"
            )
    if ablation is None:
        found.append(
            "the worth of its choices, measured in alternation with this trial: not measured yet; "
            "the figures shown come from the run's trials and the search's model"
        )
    elif begun:
        count = ablation.left
        left = counted(count, "change") if count else "some changes"
        found.append(
            f"the worth of all its choices: {left} not measured yet; this goes on with them: "
            f"{run_command('explain', data.path)}"
        )
    if other is not None and other.gathered is None:
        found.append(f"counters and machine code of {other.name}: not measured yet")
    elif other is not None and other.gathered is not None:
        mine = gathered.evidence.unavailable if gathered is not None else {}
        for part, reason in other.gathered.evidence.unavailable.items():
            if mine.get(part) != reason:
                found.append(f"{_PARTS.get(part, part)} of {other.name}: {reason}")
    if data.sample is not None:
        found.append(
            f"the figures over the space rest on {len(data.trials):,} of {data.totals.trials:,} "
            f"trials: the best, and one in {data.sample.every} of the others"
        )
    return found
