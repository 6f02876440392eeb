"""The roofline: for each part of the device, the share of the time for which a case keeps it busy.

The share comes from counters if there are any. Otherwise it is the problem's own work divided by
the ceiling and the time. This is a model, because a kernel may do more work than the problem's own.
The model's bytes count as traffic of the L2 cache if they fit in it, because a warm measurement
repeats on the same buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from evotune.backends import registry
from evotune.backends.base.evidence import Ceilings, Counters, Evidence, LaunchEvidence, Work
from evotune.backends.base.launch import DeviceProfile
from evotune.explain.findings import Kind, Roofline, Unit
from evotune.report import wording
from evotune.trial import Value

_NARROW: Final = ("float16", "bfloat16")
_IN_CACHE: Final = 0.8  # of the L2 cache; larger buffers do not stay
_POSSIBLE: Final = 1.15  # of a ceiling; a kernel beyond it refutes the ceiling
_LEAST_TENSOR: Final = 0.005  # of the peak; below it a kernel uses no tensor cores

TENSOR, FMA, MUFU, ISSUE = "tensor cores", "FMA", "MUFU", "issue slots"
SHARED, L2, DRAM, LAUNCH = "shared memory", "L2", "DRAM", "launch"
_PIPES: Final[Mapping[str, tuple[str, str]]] = {
    "tensor": (TENSOR, "FLOP/s"),
    "mufu": (MUFU, "exp2/s"),
    "fma": (FMA, "FLOP/s"),
    "alu": ("ALU", "instructions/s"),
    "lsu": ("load/store", "instructions/s"),
    "issue": (ISSUE, "instructions/s"),
    "shared": (SHARED, "bytes/s"),
    "l2": (L2, "bytes/s"),
    "dram": (DRAM, "bytes/s"),
}


def ceilings_of(
    gathered: Sequence[Evidence], profile: DeviceProfile, copy_gbps: float | None
) -> Ceilings:
    """The first measured ceilings in the evidence, all of which is of one device; else the first
    modelled ones. Missing figures come from the device's profile, and from the copy that the run
    timed at its start."""
    found = next((one.ceilings for one in gathered), Ceilings(kind="model"))
    found = next((one.ceilings for one in gathered if one.ceilings.kind == "measured"), found)
    changes: dict[str, Any] = {}
    if found.tensor_flops is None and found.fma_flops is None and profile.peak_gflops > 0:
        name = registry.named(profile.backend).peak_is
        changes[name] = profile.peak_gflops * 1e9
        note = f"the peak of {profile.name} by its description, which a kernel may not reach"
        changes["notes"] = (*found.notes, note)
    if found.dram_bytes_per_s is None:
        known = copy_gbps or _number(profile.attributes, "memory_gbps")
        if known:
            changes["dram_bytes_per_s"] = known * 1e9
    return msgspec.structs.replace(found, **changes) if changes else found


def roofline_of(
    case: str,
    time_us: float,
    work: Work,
    *,
    dtype: str,
    evidence: Evidence | None,
    ceilings: Ceilings,
    attributes: Mapping[str, Value],
    launches: int = 0,
    exponential_flops: float = 0.0,
) -> Roofline:
    """The roofline of a case. `time_us`: the time of one call. `launches`: the launches of one
    call, if there is no evidence. `exponential_flops`: the FLOP of an exponential, if the FMA unit
    computes it."""
    counters = launch_counters(evidence)
    modelled = list(
        _modelled(
            work,
            dtype=dtype,
            time_us=time_us,
            evidence=evidence,
            ceilings=ceilings,
            attributes=attributes,
            exponential_flops=exponential_flops,
        )
    )
    units = {
        unit.name: msgspec.structs.replace(unit, share=min(1.0, unit.share))
        for unit in modelled
        if unit.share <= _POSSIBLE
    }
    counted_idle = [
        name
        for pipe, (name, _) in _PIPES.items()
        if any(pipe in one.pipes for one in counters)
        and not any(one.pipes.get(pipe) for one in counters)
    ]
    for name in counted_idle:  # whatever work the model expects there
        units.pop(name, None)
    idle = idle_of(evidence, attributes)
    for unit in _counted(counters, ceilings, units, idle=idle, time_us=time_us):
        units[unit.name] = unit
    launches = len(evidence.launches) if evidence is not None and evidence.launches else launches
    if ceilings.launch_us and launches:
        share = min(1.0, launches * ceilings.launch_us / time_us)
        units[LAUNCH] = Unit(
            name=LAUNCH,
            unit="launches/s",
            rate=1e6 / ceilings.launch_us,
            work=float(launches),
            share=share,
            kind="measured" if ceilings.kind == "measured" else "model",
        )
    return Roofline(
        case=case,
        time_us=time_us,
        operations=work.operations,
        bytes_moved=work.bytes_moved,
        exponentials=work.exponentials,
        intensity=work.operations / work.bytes_moved if work.bytes_moved else 0.0,
        ceilings=ceilings.kind,
        units=tuple(sorted(units.values(), key=lambda unit: -unit.share)),
        exceeded=tuple(
            _exceeded(unit, ceilings.kind)
            for unit in modelled
            if unit.share > _POSSIBLE and unit.name not in (*units, *counted_idle)
        ),
    )


def _exceeded(unit: Unit, kind: str) -> str:
    assert unit.rate is not None
    reached = wording.rate_text(unit.share * unit.rate, unit.unit)
    ceiling = wording.rate_text(unit.rate, unit.unit)
    known = "measured" if kind == "measured" else "published"
    return (
        f"{unit.name}: the kernel reaches {reached}, more than the {known} ceiling of {ceiling}, "
        "which therefore says nothing"
    )


def largest_launch(evidence: Evidence | None) -> LaunchEvidence | None:
    """The launch that takes the longest, by counters; without counters the one with the most
    threads."""
    launches = evidence.launches if evidence is not None else ()

    def size(launch: LaunchEvidence) -> tuple[float, int]:
        time_us = launch.counters.time_us if launch.counters is not None else 0.0
        return (time_us, launch.blocks * launch.threads)

    return max(launches, key=size, default=None)


def idle_of(evidence: Evidence | None, attributes: Mapping[str, Value]) -> float:
    """The share of the multiprocessors' time in which they have no block, computed from the blocks
    of the largest launch; 0 if these are unknown. It assumes that all waves but the last have a
    block for each multiprocessor. Counters may show a smaller share, because blocks end at
    different times."""
    launch = largest_launch(evidence)
    multiprocessors = _number(attributes, "multiprocessors")
    if launch is None or launch.occupancy is None or not multiprocessors:
        return 0.0
    together = multiprocessors * launch.occupancy.blocks_per_multiprocessor
    if launch.blocks < 1 or together < 1:
        return 0.0
    waves = math.ceil(launch.blocks / together)
    left = launch.blocks - (waves - 1) * together
    idle = max(0.0, 1 - left / multiprocessors) / waves
    busy = launch.counters.multiprocessors_busy if launch.counters is not None else None
    return idle if busy is None else min(idle, 1 - busy)


def launch_counters(evidence: Evidence | None) -> Sequence[Counters]:
    """The counters of all launches, the longest first."""
    if evidence is None:
        return ()
    found = [launch.counters for launch in evidence.launches if launch.counters is not None]
    return sorted(found, key=lambda counters: -counters.time_us)


def uses_tensor_cores(evidence: Evidence | None, dtype: str) -> bool:
    """Whether the kernel uses tensor cores: by its counters, else by its machine code, else by the
    dtype.
    """
    counted = [one.pipes["tensor"] for one in launch_counters(evidence) if "tensor" in one.pipes]
    if counted:
        return max(counted) > _LEAST_TENSOR
    views = [launch.static for launch in evidence.launches if launch.static] if evidence else []
    if views:
        return any(view.instructions.get("tensor", 0) > 0 for view in views)
    return dtype in _NARROW


def _modelled(
    work: Work,
    *,
    dtype: str,
    time_us: float,
    evidence: Evidence | None,
    ceilings: Ceilings,
    attributes: Mapping[str, Value],
    exponential_flops: float,
) -> Iterable[Unit]:
    compute = (TENSOR, ceilings.tensor_flops)
    if not uses_tensor_cores(evidence, dtype) or ceilings.tensor_flops is None:
        compute = (FMA, ceilings.fma_flops)
    # A CPU has a third level, of which no bandwidth is known.
    cache = _IN_CACHE * (_number(attributes, "l3_bytes") or _number(attributes, "l2_bytes"))
    memory = (DRAM, ceilings.dram_bytes_per_s)
    if work.bytes_moved <= cache:
        memory = (L2, ceilings.l2_bytes_per_s)
    for (name, rate), demand, unit in (
        (compute, work.operations + exponential_flops * work.exponentials, "FLOP/s"),
        (memory, work.bytes_moved, "bytes/s"),
        ((MUFU, ceilings.exp2_per_s), work.exponentials, "exp2/s"),
    ):
        if rate and demand:
            share = demand / rate / (time_us * 1e-6)
            yield Unit(
                name=name, unit=unit, rate=rate, work=float(demand), share=share, kind="model"
            )


def _counted(
    counters: Sequence[Counters],
    ceilings: Ceilings,
    known: Mapping[str, Unit],
    *,
    idle: float,
    time_us: float,
) -> Iterable[Unit]:
    """Shares of the call's time by counters. Those of a multiprocessor's parts were counted while
    it has work. How long that is the counters say too; else it is all but `idle` of the launch.

    A profiled launch takes longer than a timed one, since its start is not hidden behind another
    launch: in a short kernel the multiprocessors have no work for much of it.
    """
    total = sum(one.time_us for one in counters)
    if not total:
        return
    working_us = sum(_busy(one, idle) * one.time_us for one in counters)
    rates = {
        TENSOR: ceilings.tensor_flops,
        FMA: ceilings.fma_flops,
        MUFU: ceilings.exp2_per_s,
        ISSUE: ceilings.issue_per_s,
        SHARED: ceilings.shared_bytes_per_s,
        L2: ceilings.l2_bytes_per_s,
        DRAM: ceilings.dram_bytes_per_s,
    }
    counted = {
        DRAM: _sum(one.dram_bytes for one in counters),
        L2: _sum(one.l2_bytes for one in counters),
    }
    counted[ISSUE] = _sum(one.instructions for one in counters)
    kind: Kind = "measured"
    for pipe, (name, unit) in _PIPES.items():
        whole = name in (L2, DRAM)
        busy_us = sum(
            one.pipes.get(pipe, 0.0) * one.time_us * (1.0 if whole else _busy(one, idle))
            for one in counters
        )
        if not busy_us:
            continue
        share = busy_us / max(time_us, total if whole else working_us)
        demand = counted.get(name)
        if demand is None and name in known:
            demand = known[name].work
        yield Unit(
            name=name,
            unit=unit,
            rate=rates.get(name),
            work=demand,
            share=share,
            kind=kind,
        )


def _busy(counters: Counters, idle: float) -> float:
    measured = counters.multiprocessors_busy
    return 1 - idle if measured is None else measured


def _sum(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def _number(attributes: Mapping[str, Value], name: str) -> float:
    found = attributes.get(name, 0)
    return float(found) if isinstance(found, (int, float)) else 0.0
