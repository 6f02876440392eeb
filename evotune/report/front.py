"""The Pareto front of a run with several objectives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evotune.report import wording
from evotune.report.data import RunData
from evotune.report.leaderboard import Evidence, Figures, Row, weigh
from evotune.report.wording import value_text
from evotune.timing.processes import agreement, baseline_factor
from evotune.trial import SINGLE_OBJECTIVE, Calibration, Configuration, Domain, objective_values

# The leaderboard as text cells, a line a row, for Markdown.
_MOST_CASES = 4  # a column each; with more cases only their geometric mean has one


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of plain text that is not yet escaped for a medium. `numeric` columns align right."""

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]


def leaderboard_table(data: RunData, rows: Sequence[Row]) -> TextTable:
    """The leaderboard as a table, a line for each row. A recorded run has times in milliseconds and
    no baseline."""
    return _recorded_table(rows) if data.recorded else _kernel_table(data, rows)


def _recorded_table(rows: Sequence[Row]) -> TextTable:
    return TextTable(
        ("rank", "trial", "time ms", "flags", "configuration"),
        (True, True, True, False, False),
        tuple(
            (
                row.place,
                str(row.number),
                wording.time_ms_text(row.figures.time_us),
                wording.flags_text(row),
                wording.configuration_text(row.configuration),
            )
            for row in rows
        ),
    )


def _kernel_table(data: RunData, rows: Sequence[Row]) -> TextTable:
    cases = data.cases if len(data.cases) <= _MOST_CASES else ()
    heads = [f"{case} µs vs {_baselines(data, case, rows)}" for case in cases] or ["mean µs"]
    return TextTable(
        (
            *("rank", "trial", "speedup [95%]", *heads),
            *("error / limit", "confirmed", "flags", "configuration"),
        ),
        (True, True, True, *(True for _ in heads), True, False, False, False),
        tuple(
            (
                row.place,
                str(row.number),
                wording.speedup_text(row.figures),
                *(_times(row, cases) or [wording.time_us_text(row.figures.time_us)]),
                wording.error_text(row.figures),
                "yes" if row.confirmed else "no",
                wording.flags_text(row),
                wording.configuration_text(row.configuration),
            )
            for row in rows
        ),
    )


def _baselines(data: RunData, case: str, rows: Sequence[Row]) -> str:
    """The baseline that the rows were measured against; without such rows, the run's choice."""
    used: Mapping[str, None] = dict.fromkeys(
        measurement.baseline
        for row in rows
        for measurement in row.timed
        if measurement.case == case
    )
    return ", ".join(used) or data.facts.baselines.chosen.get(case, wording.NONE)


def _times(row: Row, cases: Sequence[str]) -> list[str]:
    times = {measurement.case: measurement.time_us for measurement in row.timed}
    return [wording.time_us_text(times.get(case)) for case in cases]


FRONT_MEANING = (
    "Pareto front: no other trial is both faster and more accurate. Figures as the search measured "
    "them; error is the share of the limit in the check that came closest to it."
)


@dataclass(frozen=True, slots=True)
class Compromise:
    """A trial of the Pareto front, with the search's figures, because confirmations check more, so
    their errors cannot be compared. `error`: the largest error as a share of its limit."""

    number: int
    configuration: Configuration
    speedup: float
    error: float
    confirmed: bool


def pareto_front(
    data: RunData, evidence: Iterable[Evidence] | None = None
) -> tuple[Compromise, ...]:
    """The trials that no other trial beats in every objective, fastest first; of equal trials, only
    the first. Empty for a run with one objective."""
    objectives = data.facts.settings.objectives
    if objectives == SINGLE_OBJECTIVE:
        return ()
    known = weigh(data).values() if evidence is None else evidence
    valid = [item for item in known if item.outcome.ok and item.twin == item.trial.number]
    ranked = sorted(
        ((objective_values(item.trial.outcome, ("speedup", "error")), item) for item in valid),
        key=lambda pair: (-pair[0][0], -pair[0][1], pair[1].trial.number),
    )
    return tuple(
        Compromise(
            item.trial.number,
            item.trial.configuration,
            math.exp(speedup),
            -accuracy,
            item.confirmed,
        )
        for (speedup, accuracy), item in _first_front(ranked)
    )


def _first_front(
    ranked: Iterable[tuple[tuple[float, ...], Evidence]],
) -> Iterable[tuple[tuple[float, ...], Evidence]]:
    """The pairs, in falling order of speedup, that are more accurate than all before."""
    best = -math.inf
    for figures, item in ranked:
        if figures[1] > best:
            best = figures[1]
            yield figures, item


def front_table(front: Iterable[Compromise]) -> TextTable:
    return TextTable(
        ("trial", "speedup", "error / limit", "confirmed", "configuration"),
        (True, True, True, False, False),
        tuple(
            (
                str(row.number),
                f"{row.speedup:.3f}x",
                f"{row.error:.1%}",
                "yes" if row.confirmed else "no",
                wording.configuration_text(row.configuration),
            )
            for row in front
        ),
    )


# Table of a run's devices, compared with each other before they shared the search.
DEVICES_MEANING = (
    "Each device timed the baselines and the reference configuration, the space's default, before "
    "it took part. Only ratios on one device are compared between devices."
)


def devices_agreement(devices: Sequence[Calibration]) -> str:
    """How far the devices of one model differ, in words."""
    return agreement(devices)


def devices_table(devices: Sequence[Calibration]) -> TextTable | None:
    """A table with the factor and the reference of each device; None for a run on one device."""
    if len(devices) < 2:
        return None
    return TextTable(
        (
            "device",
            "model",
            "baselines against the first",
            "reference [95%]",
            "of the model's best",
        ),
        (False, False, True, True, True),
        tuple(_row(device, devices) for device in devices),
    )


def _row(device: Calibration, devices: Sequence[Calibration]) -> tuple[str, ...]:
    factor = baseline_factor(device, devices[0])
    speedup = device.speedup
    known = [d.speedup for d in devices if d.model == device.model and d.speedup]
    reference = Figures(speedup, device.speedup_low, device.speedup_high, None, None, None)
    return (
        device.id,
        device.model,
        wording.NONE if factor is None else f"{factor:.3f}x",
        device.reason if speedup is None else wording.speedup_text(reference),
        wording.NONE if speedup is None else f"{speedup / max(known):.1%}",
    )


# A champion's domain in words: the cases that it was checked on, a row for each region.
DOMAIN_MEANING = (
    "What the champion was checked on: from the least to the most of each quantity, each two sizes "
    "in the bands that were tried together. What lies outside was not tried."
)


def domain_text(domain: Domain) -> str:
    """A domain in words: `on NVIDIA H200 (132 multiprocessors), contiguous tensors`."""
    count = f" ({domain.multiprocessors} multiprocessors)" if domain.multiprocessors else ""
    return f"on {domain.device}{count}, {domain.layout} tensors"


def domain_table(domain: Domain) -> TextTable:
    """A row for each region. Its cells are empty for names that only other regions have: cases of
    one problem may use different features."""
    fixed = tuple(dict.fromkeys(name for region in domain.regions for name in region.fixed))
    ranged = tuple(dict.fromkeys(name for region in domain.regions for name in region.ranges))
    return TextTable(
        (*fixed, *ranged, "cases"),
        (*(False for _ in fixed), *(True for _ in ranged), True),
        tuple(
            (
                *(value_text(region.fixed[n]) if n in region.fixed else "" for n in fixed),
                *(_range_text(*region.ranges[n]) if n in region.ranges else "" for n in ranged),
                str(region.cases),
            )
            for region in domain.regions
        ),
    )


def _range_text(low: float, high: float) -> str:
    texts = [str(end) if isinstance(end, int) else f"{end:.4g}" for end in (low, high)]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)
