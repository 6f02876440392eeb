"""Writes an explanation in sentences, for the first lines of its text and for the beginning of a
report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from evotune.report import wording

if TYPE_CHECKING:
    from evotune.explain.findings import Effect, Findings, Limiter

_SHOWN_EFFECTS: Final = 3
BASES: Final = {
    "paired": "measured in alternation with this trial",
    "trials": "from speedups of the run's trials",
    "model": "predicted by the search's model",
}
"""How an effect is known, in words, by its `basis`."""


def held_text(limiter: Limiter) -> str:
    """A sentence that names the limiter and its share of a unit or of the time."""
    name, _, reason = limiter.name.partition(": ")
    share = f"{limiter.share:.0%}" if limiter.share is not None else ""
    waits = STALLS.get(reason, f"for {reason}")
    said = {
        "": "No part of the device is known to limit it."
        if limiter.evidence
        else "It is not known yet what limits its speed.",
        "spills": f"It is limited by spills: they are {share} of the instructions.",
        "launch": f"It is limited by launching: empty launches take {share} of the time.",
        "grid": f"It is limited by its grid: {share} of the multiprocessors' time is idle.",
        "bank conflicts": f"It is limited by bank conflicts: they take about {share} of the time.",
        "latency": f"It is limited by latency: {share} of a warp's waits are {waits}."
        if reason and share
        else "It is limited by latency: no unit has much work, and few warps hide the waits.",
    }
    return said[name] if name in said else _held_by_units(limiter, share)


def limiter_words(name: str) -> str:
    """A limiter's name, with the reason of waits in words."""
    kind, _, reason = name.partition(": ")
    return f"{kind}, waiting {STALLS.get(reason, f'for {reason}')}" if reason else name


def _held_by_units(limiter: Limiter, share: str) -> str:
    name = limiter.name
    units = name.split(" + ")
    if len(units) > 1:
        named = ", ".join(units[:-1]) + f" and {units[-1]}"
        return f"It is limited by {named} together: each is busy for more than half of the time."
    if limiter.evidence and limiter.evidence[0].kind == "model":
        needs = f"the problem's own work alone needs it for {share} of the time"
        return f"It is limited by {name}: {needs}."
    return f"It is limited by {name}, busy for {share} of the time."


def sure_gains(effects: Sequence[Effect]) -> list[Effect]:
    """The measured effects whose whole interval is above 1, the greatest first."""
    found = [e for e in effects if e.basis != "model" and not e.same_code and (e.low or 0.0) > 1]
    return sorted(found, key=lambda effect: -math.log(effect.worth or 1.0))


def gain_text(effect: Effect) -> str:
    """A gain in words, such as `PAD=true, 2.00x over false`, with the other values that had to
    change."""
    own, other = wording.value_text(effect.to), other_text(effect)
    return f"{effect.parameter}={own}, {effect.worth:.2f}x over {other}"


def other_text(effect: Effect) -> str:
    """An effect's other value: `32`, or `32 with STAGES=2` if another parameter had to change
    too."""
    also = f" with {wording.configuration_text(effect.also)}" if effect.also else ""
    return wording.value_text(effect.source) + also


def winner_sentences(found: Findings) -> Iterator[str]:
    """Why the explained candidate is as fast as it is, for someone who knows its time: the
    limiter with its first evidence, and the choices that are surely worth something."""
    held = held_text(found.limiter)
    if found.roofline is not None:
        held = f"On {found.roofline.case} {held[0].lower()}{held[1:]}"
    yield held
    if found.limiter.name and found.limiter.evidence:
        fact = found.limiter.evidence[0]
        yield f"{fact.text[0].upper()}{fact.text[1:]} ({fact.kind})."
    gains = sure_gains(found.effects)[:_SHOWN_EFFECTS]
    if gains:
        which = "choice" if len(gains) == 1 else "choices"
        yield f"Its most valuable {which}: {'; '.join(map(gain_text, gains))}."


def is_complete(found: Findings) -> bool:
    """Whether `explain` has measured the machine and single choices."""
    paired = any(effect.basis == "paired" for effect in found.effects)
    return paired and found.machine_code is not None


# The reasons for which a warp waits, in words.
STALLS: Final[Mapping[str, str]] = {
    "long_scoreboard": "for global or local memory",
    "short_scoreboard": "for shared memory or MUFU",
    "mio_throttle": "in the queue of shared memory and MUFU",
    "lg_throttle": "in the queue of global and local memory",
    "math_pipe_throttle": "for a busy math pipe",
    "wait": "for an instruction's fixed latency",
    "barrier": "at a barrier",
    "membar": "at a memory barrier",
    "no_instruction": "for instructions to be fetched",
    "branch_resolving": "for a branch",
    "dispatch_stall": "for the dispatcher",
    "gmma": "for wgmma",
    "sleeping": "in nanosleep",
}
"""The reasons of waits in words that follow "it waits", by ncu's names."""
