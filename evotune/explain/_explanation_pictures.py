"""The pictures of an explanation: roofline, units, waits or machine code, effects, parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from evotune.explain._bars import BarRow, bars_drawing, legend
from evotune.explain._effects_picture import effects_picture
from evotune.explain._explanation_text import shown_effects, waits_of
from evotune.explain._roofline_picture import roofline_picture
from evotune.explain._stall_reasons import STALLS
from evotune.report.html.pictures import NARROW, WIDE, Drawing, Picture

if TYPE_CHECKING:
    from evotune.explain.explanation import Explanation, MachineCode

_EFFECTS: Final = 12
_WAITS: Final = 8
_PARAMETERS: Final = 8
_LEAST_SHARE: Final = 0.01  # of the importance
_IN_CODE: Final = {
    "tensor": "tensor cores (MMA)",
    "mufu": "MUFU",
    "fma": "FMA",
    "alu": "ALU",
    "shared_load": "loads from shared memory",
    "shared_store": "stores to shared memory",
    "global_load": "loads from global memory",
    "global_store": "stores to global memory",
    "async_copy": "asynchronous copies",
    "barrier": "barriers",
    "branch": "branches",
    "local": "spills",
    "vector": "vector arithmetic without FMA",
    "scalar": "scalar arithmetic",
    "load": "loads",
    "store": "stores",
    "other": "others",
}


def explanation_pictures(found: Explanation) -> list[Picture]:
    """Those for which there is something to show, in the order of reading."""
    return [*_machine(found), *_choices(found)]


def no_waits_text(found: Explanation) -> str:
    """Why there are no bars of waits, and what stands in their place; "" if there are some."""
    if waits_of(found.counters):
        return ""
    reason = found.counters.get("unavailable")
    told = f": {reason}" if reason else ", since this device has no counters for them"
    instead = ""
    if found.machine_code is not None:
        instead = " The instructions in the machine code stand in their place."
    return f"Waits and their reasons are not known{told}.{instead}"


def _machine(found: Explanation) -> Iterator[Picture]:
    roofline, limiter = found.roofline, found.limiter.name
    if roofline is not None:
        drawn = roofline_picture(roofline, f"trial {found.trial}", limiter)
        if drawn is not None:
            yield drawn
        if roofline.units:
            yield _units(found)
    waits = waits_of(found.counters)
    if waits:
        yield _waits(waits, limiter)
    elif found.machine_code is not None and any(found.machine_code.instructions.values()):
        yield _code(found.machine_code)


def _choices(found: Explanation) -> Iterator[Picture]:
    effects = effects_picture(shown_effects(found.effects)[:_EFFECTS])
    if effects is not None:
        yield effects
    if found.over_space.importance:
        yield _parameters(found)


def _units(found: Explanation) -> Picture:
    assert found.roofline is not None
    units = found.roofline.units
    holding = found.limiter.name.split(" + ")
    kinds = {unit.kind for unit in units}
    rows = [
        BarRow(
            unit.name,
            [(unit.share, unit.kind, f"{unit.share:.0%}")],
            strong=unit.name in holding,
        )
        for unit in units
    ]
    names = [
        ("measured", "counted while it ran"),
        ("model", "needed at least, by the problem's work"),
    ]
    said = ", ".join(f"{unit.name} {unit.share:.0%} ({unit.kind})" for unit in units)
    return _picture(
        f"Busy part of the time on {found.roofline.case}",
        f"Busy part of the time: {said}.",
        rows,
        most=1.0,
        names=[name for name in names if name[0] in kinds],
    )


def _waits(waits: dict[str, float], limiter: str) -> Picture:
    ranked = sorted(waits.items(), key=lambda item: -item[1])
    shown, rest = ranked[:_WAITS], ranked[_WAITS:]
    rows = [
        BarRow(
            STALLS.get(name, name),
            [(cycles, "measured", f"{cycles:.1f}")],
            strong=limiter.endswith(f": {name}"),
        )
        for name, cycles in shown
    ]
    said = ", ".join(f"{cycles:.1f} {STALLS.get(name, name)}" for name, cycles in shown)
    note = f"{len(rest)} more reasons are {sum(c for _, c in rest):.1f} cycles together."
    return _picture(
        "Cycles that a warp waits between two instructions",
        f"Cycles that a warp waits between two instructions: {said}.",
        rows,
        most=shown[0][1],
        note=note if rest else "",
    )


def _code(code: MachineCode) -> Picture:
    total = sum(code.instructions.values())
    ranked = sorted(code.instructions.items(), key=lambda item: -item[1])
    rows = [
        BarRow(
            _IN_CODE.get(name, name),
            [(count / total, "static", f"{count / total:.0%}")],
            strong=name == "local",
        )
        for name, count in ranked
        if count
    ]
    where = "innermost loops" if code.in_loops else "whole code"
    said = ", ".join(f"{count} {_IN_CODE.get(name, name)}" for name, count in ranked if count)
    facts = [f"Read by {code.source}, not counted while it ran."]
    if code.registers:  # of a GPU: a CPU's function saves registers without spilling
        facts.append(f"{code.registers} registers a thread, {code.spilled_bytes:,} bytes spilled.")
    if code.warps is not None:
        bound = f", bound by {code.bound_by}" if code.bound_by else ""
        facts.append(f"{code.warps} of {code.max_warps} warps are resident{bound}.")
    return _picture(
        f"Instructions in the {where}",
        f"{total} instructions in the {where} of {code.kernel}: {said}.",
        rows,
        most=max(code.instructions.values()) / total,
        note=" ".join(facts),
    )


def _parameters(found: Explanation) -> Picture:
    over = found.over_space
    shown = [i for i in over.importance if max(i.best, i.model or 0.0) >= _LEAST_SHARE]
    shown = shown[:_PARAMETERS] or list(over.importance[:1])
    rows = []
    for item in shown:
        bars = [(item.best, "measured", f"{item.best:.0%}")]
        if item.model is not None:
            bars.append((item.model, "model", f"{item.model:.0%}"))
        rows.append(BarRow(item.parameter, bars))
    names = [("measured", "by how the best trials differ from all")]
    if any(item.model is not None for item in shown):
        names.append(("model", "by the search's model"))
    said = ", ".join(
        f"{item.parameter} {item.best:.0%}"
        + (f" ({item.model:.0%} in the model)" if item.model is not None else "")
        for item in shown
    )
    return _picture(
        f"Parameters that decide, over {over.valid} valid trials",
        f"Share of each parameter: {said}.",
        rows,
        most=max(max(item.best, item.model or 0.0) for item in shown) or 1.0,
        names=names,
    )


def _picture(
    title: str,
    alternative: str,
    rows: Sequence[BarRow],
    *,
    most: float,
    note: str = "",
    names: Sequence[tuple[str, str]] = (),
) -> Picture:
    def drawn(width: float) -> Drawing:
        drawing = bars_drawing(rows, width, most=most or 1.0)
        if len(names) > 1:
            legend(drawing, names)
        return drawing

    single = f"{names[0][1].capitalize()}." if len(names) == 1 else ""
    return Picture(title, alternative, drawn(WIDE), drawn(NARROW), note or single)
