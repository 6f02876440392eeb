"""Gathers the evidence of a case's launches on a GPU, and of a baseline's."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from evotune.backends.backend import SanitizedCase
from evotune.backends.cuda import _ceilings, _discover, _limits, _nsight, _static_view
from evotune.backends.cuda._presence import gpus_present
from evotune.device.channel import encode
from evotune.device.evidence import (
    BaselineRequest,
    Ceilings,
    Counters,
    Evidence,
    EvidenceRequest,
    LaunchEvidence,
    Occupancy,
    StaticView,
)
from evotune.device.launch import Launch
from evotune.device.profile import DeviceProfile
from evotune.errors import EvotuneError
from evotune.scratch import scratch_folder
from evotune.trial import Json, Value

_BINARY = "the baseline's machine code is not read"


class _NotHere(Exception):
    """Why the GPU cannot be used, in one line."""


def gather(request: EvidenceRequest) -> Evidence:
    """See `Backend.gather_evidence`."""
    missing: dict[str, str] = {}
    profile = request.profile
    ceilings = _device_ceilings(profile, request.dtype, missing)
    views: Mapping[str, StaticView] = {}
    if "static" not in request.without:
        try:
            views = _static_view.static_views(request)
        except _static_view.NoStaticView as error:
            missing["static"] = str(error)
    counters: Sequence[Counters | None] = [None] * len(request.plan.launches)
    if "counters" not in request.without:
        try:
            counters = _counters(request)
        except (_NotHere, _nsight.NoCounters) as error:
            missing["counters"] = str(error)
    launches = []
    for launch, counted in zip(request.plan.launches, counters, strict=True):
        found = _evidence_of(launch, request.resources, profile.attributes, missing)
        view = views.get(launch.entry)
        launches.append(msgspec.structs.replace(found, static=view, counters=counted))
    return Evidence(
        device=profile.name, ceilings=ceilings, launches=tuple(launches), unavailable=missing
    )


def gather_baseline(request: BaselineRequest) -> Evidence:
    """See `Backend.gather_baseline_evidence`."""
    missing = {"static": _BINARY}
    profile = request.profile
    ceilings = _device_ceilings(profile, request.dtype, missing)
    launches: tuple[LaunchEvidence, ...] = ()
    try:
        environment = _environment(profile)
        with scratch_folder() as folder:
            job = folder / "job"
            job.write_bytes(encode(request))
            module = "evotune.backends.cuda.profiled_baseline"
            seen = _nsight.profile(module, str(job), environment)
        launches = tuple(_evidence_of_profiled(each, profile.attributes, missing) for each in seen)
    except (_NotHere, _nsight.NoCounters) as error:
        missing["counters"] = missing["launches"] = str(error)
    return Evidence(device=profile.name, ceilings=ceilings, launches=launches, unavailable=missing)


def _environment(profile: DeviceProfile) -> dict[str, str]:
    """The environment in which a child process has the profile's GPU as its first one. _NotHere
    where it cannot be used."""
    if not profile.id:
        raise _NotHere(f"{profile.name} is a model: counters need the GPU itself")
    if not gpus_present():
        raise _NotHere(f"the GPU that measured it ({profile.name}) is not here")
    try:
        present = _discover.find_gpus("auto", None)
    except EvotuneError as error:
        raise _NotHere(str(error)) from error
    if profile.id not in [each.id for each in present]:
        raise _NotHere(f"the GPU that measured it ({profile.name}, {profile.id}) is not here")
    return {**os.environ, "CUDA_VISIBLE_DEVICES": profile.id}


def _device_ceilings(profile: DeviceProfile, dtype: str, missing: dict[str, str]) -> Ceilings:
    """The measured ceilings; where they cannot be measured, the model's, and the reason in
    `missing`."""
    try:
        return _ceilings.measured(profile, dtype, _environment(profile))
    except (_NotHere, _ceilings.NotMeasured) as error:
        missing["ceilings"] = str(error)
        return _ceilings.modelled(profile, dtype)


def _counters(request: EvidenceRequest) -> list[Counters]:
    """The counters of each launch."""
    environment = _environment(request.profile)
    with scratch_folder() as folder:
        job = folder / "job"
        job.write_bytes(encode(SanitizedCase(request.binary, request.plan, request.tensors)))
        module = "evotune.backends.cuda.profiled_launch"
        seen = _nsight.profile(module, str(job), environment)
    if len(seen) != len(request.plan.launches):
        planned = len(request.plan.launches)
        raise _nsight.NoCounters(f"ncu saw {len(seen)} launches of {planned}")
    return [each.counters for each in seen]


def _evidence_of(
    launch: Launch,
    resources: Mapping[str, Json],
    device: Mapping[str, Value],
    missing: dict[str, str],
) -> LaunchEvidence:
    own: Mapping[str, Json] = resources.get("entries", {}).get(launch.entry, resources)
    shared_bytes = int(own.get("static_shared_bytes", 0)) + launch.shared_bytes
    blocks, registers = math.prod(launch.grid), int(own.get("registers", 0))
    resident = _occupancy(blocks, launch.threads, registers, shared_bytes, device, missing)
    return LaunchEvidence(
        kernel=launch.entry,
        blocks=blocks,
        threads=launch.threads,
        shared_bytes=shared_bytes,
        occupancy=resident,
    )


def _evidence_of_profiled(
    seen: _nsight.ProfiledLaunch, device: Mapping[str, Value], missing: dict[str, str]
) -> LaunchEvidence:
    shared_bytes = seen.static_shared_bytes + seen.dynamic_shared_bytes
    return LaunchEvidence(
        kernel=seen.kernel,
        blocks=seen.grid,
        threads=seen.block,
        shared_bytes=shared_bytes,
        occupancy=_occupancy(seen.grid, seen.block, seen.registers, shared_bytes, device, missing),
        counters=seen.counters,
    )


def _occupancy(
    blocks: int,
    threads: int,
    registers: int,
    shared_bytes: int,
    device: Mapping[str, Value],
    missing: dict[str, str],
) -> Occupancy | None:
    """The occupancy of a launch; None, with the reason in `missing`, where it is not known."""
    if not registers:
        missing["occupancy"] = "the registers of the kernel are not known"
        return None
    try:
        found = _limits.occupancy(
            device, threads=threads, registers=registers, shared_bytes=shared_bytes
        )
        slots = int(device["multiprocessors"]) * found.blocks
        max_warps = int(device["threads_per_multiprocessor"]) // int(device["warp_size"])
    except KeyError as error:
        missing["occupancy"] = f"the device's profile has no {error.args[0]}"
        return None
    if not slots:
        missing["occupancy"] = f"no block fits on a multiprocessor: {found.bound_by}"
        return None
    return Occupancy(
        blocks_per_multiprocessor=found.blocks,
        bound_by=found.bound_by,
        warps=round(found.share * max_warps),
        max_warps=max_warps,
        waves=blocks / slots,
    )
