"""Compares two candidates in the machine: the figures in which they differ.

A figure comes from counters, the machine code, the launch, or the compiler. There is a line for
each figure that both sides have and that differs. Figures that grow with a case's size are compared
only if both sides have them for the same case. Lines are ranked by the share of the time that they
can explain, with rough weights: a bank conflict ranks before the waits that it causes, a wait by
its share, a ratio of instructions or bytes by its logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from evotune.backends.base.evidence import Counters, GatheredEvidence, LaunchEvidence, StaticView
from evotune.explain.findings import Against, Kind, Line
from evotune.explain.limiter_rules import PTX, Case, stalls_of
from evotune.explain.roofline import launch_counters
from evotune.explain.sentences import STALLS
from evotune.report.wording import difference
from evotune.trial import Json, NamedFigures, Value

_MOST_LINES: Final = 12
_HEADLINES: Final = 3
_LEAST_RATIO: Final = 0.02  # in ln: figures closer than this are the same
_LEAST_STALL: Final = 0.15  # cycles


@dataclass(frozen=True, slots=True)
class Machine:
    """The known facts about how the machine executes one candidate.

    - `resources`: compilers' figures.
    - `interval`: the 95% interval of its time / the explained candidate's.
    """

    name: str
    configuration: Mapping[str, Value] | None = None
    time_us: float | None = None
    gathered: GatheredEvidence | None = None
    resources: NamedFigures = field(default_factory=dict)
    interval: tuple[float, float] | None = None


def against_of(mine: Machine, other: Machine) -> Against:
    """The lines in which the two differ, the most telling first."""
    ranked = sorted(_lines(mine, other), key=lambda item: -item[0])
    lines = tuple(line for _, line in ranked[:_MOST_LINES])
    changed: dict[str, tuple[Value | None, Value | None]] = {}
    if mine.configuration is not None and other.configuration is not None:
        for name in difference(mine.configuration, other.configuration):
            changed[name] = (mine.configuration[name], other.configuration.get(name))
        for name in other.configuration:
            if name not in mine.configuration:
                changed[name] = (None, other.configuration[name])
    worth = other.time_us / mine.time_us if mine.time_us and other.time_us else None
    headline = "; ".join(line.text for line in lines[:_HEADLINES])
    low, high = other.interval if other.interval is not None and worth else (None, None)
    return Against(
        name=other.name,
        worth=worth,
        low=low,
        high=high,
        changed=changed,
        headline=headline,
        lines=lines,
    )


_LEAST_RANK: Final = 0.04
_FEWER_IS_WORSE: Final = ("occupancy", "blocks_resident", "warps active")
_NO_CAUSE: Final = ("shared_bytes_total", "code_bytes", "registers", "threads", "blocks", "waves")


def telling_line(mine: Machine, other: Machine, *, other_is_slower: bool) -> str:
    """The largest difference that can explain why the slower one is slower, in words; "" if none is
    known."""
    ranked = sorted(_lines(mine, other), key=lambda item: -item[0])
    for rank, line in ranked:
        if rank >= _LEAST_RANK and _can_be_why(line, other_is_slower=other_is_slower):
            return line.text
    return ""


def _can_be_why(line: Line, *, other_is_slower: bool) -> bool:
    """Whether the slower one has the worse figure. Counts of instructions in a loop do not count,
    except spills, because an unrolled loop has more of them and fewer iterations."""
    if line.figure in _NO_CAUSE or line.first is None or line.second is None:
        return False
    if line.kind == "static" and line.figure.endswith(" instructions"):
        return line.figure.startswith("local ") and (line.second > line.first) == other_is_slower
    other_has_more = line.second > line.first
    return (other_has_more == other_is_slower) != (line.figure in _FEWER_IS_WORSE)


def _lines(mine: Machine, other: Machine) -> Iterator[tuple[float, Line]]:
    yield from _counted(mine, other)
    yield from _static(mine, other)
    yield from _launched(mine, other)
    yield from _compiled(mine, other)


# --- By counters ----------------------------------------------------------------------------------


def _counted(mine: Machine, other: Machine) -> Iterator[tuple[float, Line]]:
    ones, others = (_counters(machine) for machine in (mine, other))
    if not ones or not others or not _of_one_case(mine, other):
        return
    first, second = (_conflict_share(c) for c in (ones, others))
    if first is not None and second is not None and abs(first - second) >= 0.02:
        text = f"{first:.0%} of shared memory's passes are bank conflicts (there {second:.0%})"
        if first < 0.02:
            text = f"no bank conflicts (there {second:.0%} of shared memory's passes)"
        yield 0.5 + abs(first - second), _line("bank conflicts", first, second, text)
    yield from _ratio(
        "instructions", _per_work(mine, ones), _per_work(other, others), _work_word(mine), 1.0
    )
    for name, word in (("dram_bytes", "DRAM bytes"), ("l2_bytes", "L2 bytes")):
        yield from _ratio(word, _sum(ones, name), _sum(others, name), word, 0.5)
    stalls = [stalls_of(m.gathered.evidence) if m.gathered else {} for m in (mine, other)]
    total = max(sum(found.values()) for found in stalls) or 1.0
    for name in dict.fromkeys((*stalls[0], *stalls[1])):
        one, another = (found.get(name, 0.0) for found in stalls)
        if abs(one - another) >= _LEAST_STALL:
            words = STALLS.get(name, name)
            text = f"a warp waits {one:.1f} cycles {words} (there {another:.1f})"
            if one < _LEAST_STALL:
                text = f"hardly any waiting {words} (there {another:.1f} cycles)"
            yield 0.5 * abs(one - another) / total, _line(f"stall {name}", one, another, text)
    active, there = ones[0].warps_active, others[0].warps_active
    if active is not None and there is not None and abs(active - there) >= 0.03:
        text = f"{active:.0%} of the warps are active (there {there:.0%})"
        yield abs(active - there) / 2, _line("warps active", active, there, text)


def _of_one_case(mine: Machine, other: Machine) -> bool:
    cases = [machine.gathered.case for machine in (mine, other) if machine.gathered is not None]
    return len(cases) == 2 and cases[0] == cases[1]


def _counters(machine: Machine) -> list[Counters]:
    return list(launch_counters(machine.gathered.evidence)) if machine.gathered else []


def _conflict_share(counters: list[Counters]) -> float | None:
    if any(c.shared_wavefronts is None or c.shared_conflicts is None for c in counters):
        return None
    passes = sum(c.shared_wavefronts or 0.0 for c in counters)
    return sum(c.shared_conflicts or 0.0 for c in counters) / passes if passes else 0.0


def _per_work(machine: Machine, counters: list[Counters]) -> float | None:
    """Instructions, per exponential if the problem has some (one per score of attention)."""
    total = _sum(counters, "instructions")
    work = machine.gathered.work if machine.gathered else None
    return total * 32 / work.exponentials if total and work and work.exponentials else total


def _work_word(machine: Machine) -> str:
    work = machine.gathered.work if machine.gathered else None
    return "instructions a score" if work and work.exponentials else "instructions"


def _sum(counters: list[Counters], name: str) -> float | None:
    found = [getattr(c, name) for c in counters]
    return None if any(value is None for value in found) else float(sum(found))


# --- By the machine code and the launch -----------------------------------------------------------


def _static(mine: Machine, other: Machine) -> Iterator[tuple[float, Line]]:
    one, another = _view(mine), _view(other)
    if one is None or another is None or (one.source == PTX) != (another.source == PTX):
        return
    counted = bool(one.loop_instructions and another.loop_instructions)
    first, second = (
        (view.loop_instructions if counted else view.instructions) for view in (one, another)
    )
    where = " in the innermost loops" if counted else ""
    totals = [sum(found.values()) for found in (first, second)]
    for name in dict.fromkeys((*first, *second)):
        a, b = first.get(name, 0), second.get(name, 0)
        if a == b or not max(totals):
            continue
        words = {"local": "spilling", "mufu": "MUFU", "fma": "FMA", "alu": "ALU"}
        words |= {"async_copy": "asynchronous copy", "other": "unclassified"}
        words |= {"vector": "vector arithmetic", "scalar": "scalar arithmetic"}
        text = f"{a} {words.get(name, name.replace('_', ' '))} instructions{where} (there {b})"
        rank = abs(a - b) / max(totals) * (1.0 if name == "local" else 0.3)
        yield rank, _line(f"{name} instructions", a, b, text, "static")


def _view(machine: Machine) -> StaticView | None:
    launch = _largest(machine)
    return launch.static if launch is not None else None


def _largest(machine: Machine) -> LaunchEvidence | None:
    return Case(None, machine.gathered, {}).largest


def _launched(mine: Machine, other: Machine) -> Iterator[tuple[float, Line]]:
    counts = [len(m.gathered.evidence.launches) if m.gathered else 0 for m in (mine, other)]
    if all(counts) and counts[0] != counts[1]:
        text = f"{counts[0]} launch{'es' if counts[0] > 1 else ''} (there {counts[1]})"
        yield 0.3, _line("launches", counts[0], counts[1], text, "static")
    one, another = _largest(mine), _largest(other)
    if one is None or another is None:
        return
    same = _of_one_case(mine, other)
    if same and one.occupancy is not None and another.occupancy is not None:
        a, b = one.occupancy.waves, another.occupancy.waves
        if abs(a - b) > 0.02:
            yield (
                0.5 * abs(_waste(a) - _waste(b)) + 0.05,
                _line("waves", a, b, f"{a:.2f} waves of blocks (there {b:.2f})", "static"),
            )
    if one.threads != another.threads:
        text = f"{one.threads} threads a block (there {another.threads})"
        rank = 0.05 * abs(math.log(one.threads / another.threads))
        yield rank, _line("threads", one.threads, another.threads, text, "static")
    if same and one.blocks != another.blocks:
        text = f"{one.blocks:,} blocks (there {another.blocks:,})"
        rank = 0.04 * abs(math.log(one.blocks / another.blocks))
        yield rank, _line("blocks", one.blocks, another.blocks, text, "static")


def _waste(waves: float) -> float:
    return 1 - waves / math.ceil(waves) if waves > 0 else 0.0


# --- By the compiler's figures --------------------------------------------------------------------

_COMPILED: Final[tuple[tuple[str, str, float], ...]] = (
    ("registers", "registers a thread", 0.15),
    ("shared_bytes_total", "bytes of shared memory a block", 0.08),
    ("blocks_resident", "blocks a multiprocessor", 0.25),
    ("occupancy", "of the warps resident", 0.2),
    ("code_bytes", "bytes of code", 0.03),
)


def _compiled(mine: Machine, other: Machine) -> Iterator[tuple[float, Line]]:
    one, another = _resources(mine), _resources(other)
    if "spill_bytes" in one and "spill_bytes" in another:
        a, b = float(one["spill_bytes"]), float(another["spill_bytes"])
        if a != b:
            text = (
                f"{a:,.0f} bytes spilled (there {b:,.0f})"
                if a
                else f"no spills (there {b:,.0f} bytes)"
            )
            yield min(1.0, 0.3 + abs(a - b) / 1000), _line("spill_bytes", a, b, text)
    for name, words, weight in _COMPILED:
        if name not in one or name not in another:
            continue
        a, b = float(one[name]), float(another[name])
        if not a or not b or abs(math.log(a / b)) < _LEAST_RATIO:
            continue
        text = f"{a:,.0f} {words} (there {b:,.0f})"
        if name == "occupancy":
            text = f"{a:.0%} {words} (there {b:.0%})"
        yield weight * abs(math.log(a / b)), _line(name, a, b, text)


def _resources(machine: Machine) -> Mapping[str, Json]:
    found = machine.resources or (machine.gathered.resources if machine.gathered else {})
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


# --- Lines ----------------------------------------------------------------------------------------


def _ratio(
    figure: str, first: float | None, second: float | None, words: str, weight: float
) -> Iterator[tuple[float, Line]]:
    """`17% fewer instructions a score`."""
    if not first or not second or abs(math.log(first / second)) < _LEAST_RATIO:
        return
    ratio = first / second
    text = f"{1 - ratio:.0%} fewer {words}" if ratio < 1 else f"{ratio - 1:.0%} more {words}"
    yield weight * abs(math.log(ratio)), _line(figure, first, second, text)


def _line(figure: str, first: float, second: float, text: str, kind: Kind = "measured") -> Line:
    return Line(figure=figure, first=float(first), second=float(second), text=text, kind=kind)
