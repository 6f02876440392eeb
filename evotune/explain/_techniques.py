"""Suggestions of techniques: what would go away or be halved, by the limiter. An estimate is a
bound: the gain if the named part of the time goes away. A technique that the device does not have
is not suggested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from evotune.explain._limiter import CONFLICTS, GRID, LATENCY, SPILLS, Case, stalls_of
from evotune.explain._roofline import DRAM, FMA, ISSUE, L2, LAUNCH, MUFU, SHARED, TENSOR
from evotune.explain._stall_reasons import STALLS
from evotune.explain.explanation import Limiter, Suggestion

_FP8: Final = 89  # the first architecture that has it
_HOPPER: Final = 90  # the first one with clusters and programmatic dependent launch
_POLYNOMIAL: Final = 0.75
"""FMA time of an exponential by a polynomial of degree 5, in MUFU times: six instructions at eight
times MUFU's rate."""


def techniques_of(limiter: Limiter, case: Case) -> Iterator[Suggestion]:
    name, share = limiter.name, limiter.share or 0.0
    if name == SPILLS:
        yield _technique(
            "keep fewer values in registers, or allow more of them by looser launch bounds",
            f"spills are {share:.0%} of the instructions: without them",
            1 / (1 - share),
        )
    elif name == CONFLICTS:
        yield _technique(
            "pad or swizzle the rows of shared memory",
            f"bank conflicts take {share:.0%} of the time: without them",
            1 / (1 - share),
        )
    elif name == LAUNCH:
        yield from _fewer_launches(case, share)
    elif name == GRID:
        launch = case.largest
        waves = launch.occupancy.waves if launch is not None and launch.occupancy else 1.0
        change = (
            "split the work into more blocks, along a dimension that one block walks over"
            if waves <= 1
            else "let resident blocks share the last wave's work (persistent blocks, stream-K)"
        )
        yield _technique(
            change,
            f"{share:.0%} of the multiprocessors' time is idle: with it filled",
            1 / (1 - share),
        )
    elif name.startswith(LATENCY):
        yield from _hidden(case)
    if MUFU in name:
        yield from _polynomials(case)
    if name.startswith(TENSOR) and _arch(case) >= _FP8:
        yield from _half_of(case, TENSOR, "multiply in FP8 where its accuracy is enough")
    if name == DRAM:
        yield from _memory(case)
    if name == L2:
        yield from _half_of(case, L2, _fewer_reads(case))
    if name == SHARED:
        yield from _half_of(case, SHARED, "keep one operand in registers instead of shared memory")
    if name.startswith(ISSUE):
        yield from _fewer_instructions(case)


def _on_gpu(case: Case) -> bool:
    return "multiprocessors" in case.attributes


def _arch(case: Case) -> int:
    """A GPU's compute capability: 90 for 9.0; 0 of a CPU."""
    found = case.attributes.get("arch", 0)
    return found if isinstance(found, int) else 0


def _technique(text: str, because: str, estimate: float) -> Suggestion:
    rule = f"{because}, at most {estimate:.2f}x"
    return Suggestion(kind="technique", text=text, rule=rule, estimate=estimate)


def _fewer_launches(case: Case, share: float) -> Iterator[Suggestion]:
    unit = next(u for u in case.roofline.units if u.name == LAUNCH) if case.roofline else None
    count = int(unit.work or 1) if unit is not None else 1
    if count > 1:
        saved = share * (count - 1) / count
        yield _technique(
            f"make one launch of {count}",
            f"the other {count - 1} take {saved:.0%}",
            1 / (1 - saved),
        )
    elif not _on_gpu(case):
        yield _technique(
            "work on fewer threads, or on one",
            f"starting all threads takes {share:.0%} of the time: without it",
            1 / (1 - min(share, 0.9)),
        )
    elif _arch(case) >= _HOPPER:
        yield _technique(
            "start the launch before the one before it ends (programmatic dependent launch)",
            f"an empty launch takes {share:.0%} of the time: with half of it hidden",
            1 / (1 - share / 2),
        )


_HIDING: Final[Mapping[str, str]] = {
    "long_scoreboard": "ask for data earlier: more stages in flight, or a producer warp",
    "wait": "interleave independent instructions, or more warps, between dependent ones",
    "barrier": "split barriers into arrive and wait, so that warps need not meet",
    "no_instruction": "shorten the code: roll loops whose bodies do not fit the instruction cache",
    "short_scoreboard": "load from shared memory an iteration ahead of the use",
    "math_pipe_throttle": "mix instructions of different pipes",
    "mio_throttle": "use wider shared memory instructions",
    "lg_throttle": "use wider global memory instructions",
    "branch_resolving": "replace branches in the loop by predicates",
    "gmma": "issue the next wgmma before waiting for the one before",
}


def _hidden(case: Case) -> Iterator[Suggestion]:
    stalls = stalls_of(case.evidence)
    if not stalls:
        return
    worst, cycles = max(stalls.items(), key=lambda item: item[1])
    share = cycles / (sum(stalls.values()) + 1)  # and one cycle to issue
    if worst in _HIDING:
        waits = STALLS.get(worst, f"for {worst}")
        because = f"a warp spends {share:.0%} of its time waiting {waits}: with half of it hidden"
        yield _technique(_HIDING[worst], because, 1 / (1 - share / 2))


def _polynomials(case: Case) -> Iterator[Suggestion]:
    """The share of exponentials that evens MUFU and the FMA pipe out."""
    shares = {unit.name: unit.share for unit in case.units if unit.kind == "measured"}
    mufu, fma = shares.get(MUFU), shares.get(FMA)
    if mufu is None or fma is None or fma >= mufu:
        return
    moved = (mufu - fma) / (mufu * (1 + _POLYNOMIAL))
    others = max((share for name, share in shares.items() if name not in (MUFU, FMA)), default=0)
    estimate = mufu / max(mufu * (1 - moved), others)
    because = f"MUFU is busy for {mufu:.0%} of the time, the FMA pipe for {fma:.0%}: evened out"
    yield _technique(
        f"compute {moved:.0%} of the exponentials by polynomials on the FMA pipe", because, estimate
    )


def _half_of(case: Case, name: str, text: str) -> Iterator[Suggestion]:
    units = case.units
    own = next((unit for unit in units if unit.name == name), None)
    if own is None:
        return
    rest = max((unit.share for unit in units if unit.name != name), default=0.0)
    estimate = own.share / max(own.share / 2, rest)
    verb = "are" if name == TENSOR else "is"
    because = (
        f"{name} {verb} busy for {own.share:.0%} of the time, the next unit for {rest:.0%}: with "
        f"half the work of {name}"
    )
    yield _technique(text, because, estimate)


def _fewer_reads(case: Case) -> str:
    if not _on_gpu(case):
        return "work on tiles that stay in a core's own cache, or make fewer passes"
    ways = "clusters, larger tiles" if _arch(case) >= _HOPPER else "larger tiles"
    return f"read each tile once for two blocks ({ways})"


def _memory(case: Case) -> Iterator[Suggestion]:
    roofline = case.roofline
    own = next((unit for unit in case.units if unit.name == DRAM), None)
    if roofline is None or own is None:
        return
    if own.kind == "measured" and own.work and own.work > 1.1 * roofline.bytes_moved:
        times = own.work / roofline.bytes_moved
        because = f"DRAM moves {times:.1f} times the bytes that must cross it: with each moved once"
        text = "change the order of blocks so that data is read while it is in the L2 cache"
        yield _technique(text, because, min(times, 1 / (1 - own.share * (1 - 1 / times))))
    elif own.share < 0.9:
        because = f"the bytes that must cross DRAM need {own.share:.0%} of the time"
        yield _technique("keep more bytes in flight", because, 1 / max(own.share, 0.5))


def _fewer_instructions(case: Case) -> Iterator[Suggestion]:
    launch = case.largest
    counted = launch.static.loop_instructions if launch is not None and launch.static else {}
    total = sum(counted.values())
    integers = counted.get("alu", 0) + counted.get("other", 0)
    if total and integers / total >= 0.3:
        share = integers / total
        what = "integer arithmetic, comparisons, moves and the like"
        because = f"{share:.0%} of the instructions in the innermost loops are {what}"
        text = "take addresses and masks out of the loop"
        yield _technique(text, f"{because}: with half of them", 1 / (1 - share / 2))
