"""The limiter of a kernel: the first of six rules that its evidence supports.

1. Spills: local loads and stores are at least a twentieth of the instructions in its innermost
   loops.
2. Launch: starting its launches takes at least a third of the time. This time adds to the rest,
   whereas units work in parallel.
3. A unit: the busiest one is busy for at least 70% of the time, or for 50%. In the second case
   other units that are busy for 50% and within ten points of it limit the kernel too. If the unit
   is shared memory and at least 15% of its passes repeat others, the limiter is bank conflicts.
4. Bank conflicts, by stalls: so many passes repeat others, and waits for shared memory are the
   longest.
5. Grid: a quarter of the multiprocessors' time is idle, because there are too few blocks, or
   because the last wave is nearly empty.
6. Latency: no unit is busy enough and warps wait (by counters); without counters, the problem's
   work needs at most a third of any unit, and few warps are there to hide waits.

If no rule applies, the limiter has no name, because nothing supports a statement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from evotune.backends.base.evidence import Evidence, GatheredEvidence, LaunchEvidence
from evotune.explain.findings import Fact, Limiter, Roofline, Unit
from evotune.explain.roofline import LAUNCH, SHARED, idle_of, largest_launch, launch_counters
from evotune.explain.sentences import STALLS
from evotune.trial import Value

SPILLS, CONFLICTS, GRID, LATENCY = "spills", "bank conflicts", "grid", "latency"

_SPILLING: Final = 0.05  # of the instructions in the innermost loops
_SPILLED_BYTES: Final = 4  # of one local load or store
PTX: Final = "ptx"
_AT_LEAST: Final = "part of the time that the problem's own work needs at least"
_LAUNCHING: Final = 1 / 3  # of the time
_BUSY: Final = 0.7
_HALF: Final = 0.5
_CLOSE: Final = 0.1
_CONFLICTING: Final = 0.15  # of the passes through shared memory
_IDLE: Final = 0.25  # of the multiprocessors' time
_LITTLE: Final = 1 / 3  # of a unit's time; the model counts only the problem's own work
_FEW_WARPS: Final = 0.25  # of those that a multiprocessor takes
_SHOWN_STALLS: Final = 3
_AT_WORK: Final = ("selected", "not_selected")
_SHARED_STALLS: Final = ("short_scoreboard", "mio_throttle")


@dataclass(frozen=True, slots=True)
class Case:
    """The inputs of the rules."""

    roofline: Roofline | None
    gathered: GatheredEvidence | None
    attributes: Mapping[str, Value]

    @property
    def evidence(self) -> Evidence | None:
        return self.gathered.evidence if self.gathered is not None else None

    @property
    def largest(self) -> LaunchEvidence | None:
        return largest_launch(self.evidence)

    @property
    def units(self) -> list[Unit]:
        found = self.roofline.units if self.roofline is not None else ()
        return sorted((u for u in found if u.name != LAUNCH), key=lambda unit: -unit.share)


def limiter_of(case: Case) -> Limiter:
    """The limiter by the first rule that applies; a limiter without a name if none does."""
    for rule in _RULES:
        found = rule(case)
        if found is not None:
            return found
    return Limiter(
        name="",
        share=None,
        rule="none of the six rules holds by this evidence",
        evidence=tuple(_busiest(case)),
    )


def _spills(case: Case) -> Limiter | None:
    launch = case.largest
    view = launch.static if launch is not None else None
    if view is None:
        return None
    spilled = view.spill_load_bytes + view.spill_store_bytes
    in_loops = bool(view.loop_instructions) and "local" in view.instructions
    counted = view.loop_instructions if in_loops else view.instructions
    local = counted.get("local", 0)
    if not local and not in_loops and view.source == PTX:
        # PTX has no spills yet: their bytes tell the number of the instructions to come. A CPU's
        # code has bytes too, but most are registers that a function saves once.
        local = spilled // _SPILLED_BYTES
    total = sum(counted.values()) + (0 if counted.get("local") else local)
    if not total or local / total < _SPILLING:
        return None
    where = "innermost loops" if in_loops else "code"
    fact = Fact(
        text=f"{local} of {total} instructions in the {where} are spills"
        + (f"; {spilled:,} bytes a thread are spilled" if spilled else "")
        + f" at {view.registers} registers",
        kind="static",
        numbers={
            "local": local,
            "instructions": total,
            "spilled_bytes": spilled,
            "registers": view.registers,
        },
    )
    rule = f"spills are at least 5% of the instructions in the {where}"
    return Limiter(
        name=SPILLS, share=local / total, rule=rule, evidence=(fact, *_stall_facts(case))
    )


def _launch(case: Case) -> Limiter | None:
    units = case.roofline.units if case.roofline is not None else ()
    unit = next((unit for unit in units if unit.name == LAUNCH), None)
    if unit is None or not unit.rate or unit.share < _LAUNCHING:
        return None
    assert case.roofline is not None
    count, time_us = int(unit.work or 1), case.roofline.time_us
    launches = "1 launch" if count == 1 else f"{count} launches"
    fact = Fact(
        text=f"{launches} of {1e6 / unit.rate:.2f} µs when empty, in {time_us:.2f} µs",
        kind=unit.kind,
        numbers={"launches": count, "share": unit.share},
    )
    rule = "empty launches take at least a third of the time"
    return Limiter(name=LAUNCH, share=unit.share, rule=rule, evidence=(fact, *_busiest(case)))


def _unit(case: Case) -> Limiter | None:
    units = case.units
    if not units or units[0].share < _HALF:
        return None
    first = units[0]
    beside = [u for u in units[1:] if u.share >= _HALF and first.share - u.share < _CLOSE]
    if first.share < _BUSY and beside:
        names = " + ".join(unit.name for unit in (first, *beside))
        rule = (
            "these units are busy for at least half of the time, within ten points of the busiest"
        )
        return Limiter(name=names, share=first.share, rule=rule, evidence=tuple(_busiest(case)))
    repeated = _conflicts(case)
    if first.name == SHARED and repeated is not None:
        rule = "shared memory is the busiest unit, and at least 15% of its passes repeat others"
        share = first.share * repeated.numbers["share"]
        return Limiter(name=CONFLICTS, share=share, rule=rule, evidence=(repeated, *_busiest(case)))
    rule = "the busiest unit, busy for at least 70% of the time"
    if first.share < _BUSY:
        rule = "the busiest unit, and the only one within ten points that is busy for half the time"
    return Limiter(name=first.name, share=first.share, rule=rule, evidence=tuple(_busiest(case)))


def _conflicts(case: Case) -> Fact | None:
    """The bank conflicts, if they are at least 15% of the passes."""
    counters = launch_counters(case.evidence)
    passes = sum(one.shared_wavefronts or 0.0 for one in counters)
    repeated = sum(one.shared_conflicts or 0.0 for one in counters)
    if not passes or repeated / passes < _CONFLICTING:
        return None
    return Fact(
        text=f"{repeated / passes:.0%} of the passes through shared memory are bank conflicts",
        kind="measured",
        numbers={"share": repeated / passes, "conflicts": repeated, "wavefronts": passes},
    )


def _conflicts_by_stalls(case: Case) -> Limiter | None:
    repeated, stalls = _conflicts(case), stalls_of(case.evidence)
    if repeated is None or not stalls:
        return None
    waiting = sum(stalls.get(name, 0.0) for name in _SHARED_STALLS)
    others = [cycles for name, cycles in stalls.items() if name not in _SHARED_STALLS]
    if waiting < max(others, default=0.0):
        return None
    share = repeated.numbers["share"] * waiting / sum(stalls.values())
    rule = "at least 15% of the passes repeat others, and waits for shared memory are the longest"
    return Limiter(name=CONFLICTS, share=share, rule=rule, evidence=(repeated, *_stall_facts(case)))


def _grid(case: Case) -> Limiter | None:
    launch = case.largest
    resident = launch.occupancy if launch is not None else None
    if launch is None or resident is None or resident.waves <= 0:
        return None
    idle = idle_of(case.evidence, case.attributes)
    if idle < _IDLE:
        return None
    slots = f"{resident.blocks_per_multiprocessor} a multiprocessor"
    text = f"{launch.blocks:,} blocks fill {resident.waves:.2f} waves of blocks ({slots})"
    fact = Fact(
        text=f"{text}: {idle:.0%} of the multiprocessors' time is idle",
        kind="static",
        numbers={"blocks": launch.blocks, "waves": resident.waves, "idle": idle},
    )
    rule = "at least a quarter of the multiprocessors' time is idle, by blocks and waves"
    return Limiter(name=GRID, share=idle, rule=rule, evidence=(fact, *_busiest(case)))


def _latency(case: Case) -> Limiter | None:
    if not case.units:
        return None
    stalls = stalls_of(case.evidence)
    busiest = tuple(_busiest(case))
    if stalls:
        worst, cycles = max(stalls.items(), key=lambda item: item[1])
        share = cycles / sum(stalls.values())
        rule = "no unit is busy for half of the time, and warps wait between instructions"
        facts = (*_stall_facts(case), *_occupancy_facts(case), *_work_facts(case), *busiest)
        return Limiter(name=f"{LATENCY}: {worst}", share=share, rule=rule, evidence=facts)
    launch = case.largest
    resident = launch.occupancy if launch is not None else None
    if resident is None or resident.warps > _FEW_WARPS * resident.max_warps:
        return None
    if case.units[0].share > _LITTLE:
        return None
    rule = "work needs at most a third of any unit, and at most a quarter of the warps are resident"
    facts = (*_occupancy_facts(case), *busiest)
    return Limiter(name=LATENCY, share=None, rule=rule, evidence=facts)


def stalls_of(evidence: Evidence | None) -> dict[str, float]:
    """The cycles for which a warp waits between two instructions in the longest launch, by
    reason."""
    counters = launch_counters(evidence)
    found = counters[0].stalls if counters else {}
    return {name: cycles for name, cycles in found.items() if name not in _AT_WORK and cycles > 0}


def _stall_facts(case: Case) -> Iterator[Fact]:
    stalls = stalls_of(case.evidence)
    if not stalls:
        return
    ranked = sorted(stalls.items(), key=lambda item: -item[1])[:_SHOWN_STALLS]
    waits = ", ".join(f"{cycles:.1f} {STALLS.get(name, name)}" for name, cycles in ranked)
    total = sum(stalls.values())
    yield Fact(
        text=f"a warp waits {total:.1f} cycles between two instructions: {waits}",
        kind="measured",
        numbers=dict(ranked),
    )


def _occupancy_facts(case: Case) -> Iterator[Fact]:
    launch = case.largest
    resident = launch.occupancy if launch is not None else None
    if resident is not None:
        yield Fact(
            text=f"a multiprocessor holds {resident.warps} warps at once and could hold "
            f"{resident.max_warps}; {resident.bound_by} keep{_s(resident.bound_by)} more out",
            kind="static",
            numbers={"warps": resident.warps, "max_warps": resident.max_warps},
        )


def _s(name: str) -> str:
    """The ending of a verb after a resource's name: `registers keep`, `shared memory keeps`."""
    return "" if name.endswith("s") else "s"


def _work_facts(case: Case) -> Iterator[Fact]:
    """The time in which the multiprocessors have no work: a short launch starts and ends them one
    by one."""
    counters = launch_counters(case.evidence)
    busy = counters[0].multiprocessors_busy if counters else None
    if busy is not None and 1 - busy >= _IDLE:
        time_us = counters[0].time_us
        yield Fact(
            text=f"a multiprocessor has no work for {1 - busy:.0%} of the {time_us:.1f} µs that "
            "the launch takes under the profiler",
            kind="measured",
            numbers={"busy": busy, "time_us": time_us},
        )


def _busiest(case: Case) -> Iterator[Fact]:
    """A fact for each kind of evidence: the busy shares of at most four units, busiest first."""
    shown = [unit for unit in case.units if unit.share >= 0.01][:4]
    for kind in dict.fromkeys(unit.kind for unit in shown):
        units = [unit for unit in shown if unit.kind == kind]
        named = ", ".join(f"{unit.name} {_whole_percent(unit.share)}%" for unit in units)
        lead = "busy part of the time" if kind == "measured" else _AT_LEAST
        numbers = {unit.name: unit.share for unit in units}
        yield Fact(text=f"{lead}: {named}", kind=kind, numbers=numbers)


def _whole_percent(share: float) -> int:
    """Rounded down, so that a share below a rule's bound does not read as the bound; but a share
    that is a whole percent stays one, which in binary may lie just below it."""
    return math.floor(100 * share + 1e-6)


_RULES: Final[tuple[Callable[[Case], Limiter | None], ...]] = (
    _spills,
    _launch,
    _unit,
    _conflicts_by_stalls,
    _grid,
    _latency,
)
