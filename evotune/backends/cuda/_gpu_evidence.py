"""Gathers the evidence of a case's launches on a GPU, and of a baseline's."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from evotune.backends.base.backend import SanitizedCase
from evotune.backends.base.evidence import (
    BaselineRequest,
    Ceilings,
    Counters,
    Evidence,
    EvidenceRequest,
    LaunchEvidence,
    Occupancy,
    StaticView,
)
from evotune.backends.base.launch import Launch
from evotune.backends.base.profile import DeviceProfile
from evotune.backends.cuda import _ceilings, _cubin, _discover, _limits, _nsight, _static_view
from evotune.backends.cuda._presence import gpus_present
from evotune.errors import EvotuneError
from evotune.trial import Json, Value
from evotune.util.channel import encode
from evotune.util.scratch import scratch_folder

_BINARY = "the baseline's machine code is not read"


class _NotHere(Exception):
    """Why the GPU cannot be used, in one line."""


def gather(request: EvidenceRequest) -> Evidence:
    """See `Backend.gather_evidence`."""
    missing: dict[str, str] = {}
    profile = request.profile
    resources = _cubin.with_registers(request.resources, Path(request.binary))
    request = msgspec.structs.replace(request, resources=resources)
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
        found = _planned(launch, request.resources, profile.attributes, missing)
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
        environment = _environment(_here(profile))
        with scratch_folder() as folder:
            job = folder / "job"
            job.write_bytes(encode(request))
            module = "evotune.backends.cuda.profiled_baseline"
            seen = _nsight.profile(module, str(job), environment)
        launches = tuple(_profiled(each, profile.attributes, missing) for each in seen)
    except (_NotHere, _nsight.NoCounters) as error:
        missing["counters"] = missing["launches"] = str(error)
    return Evidence(device=profile.name, ceilings=ceilings, launches=launches, unavailable=missing)


def _here(profile: DeviceProfile) -> DeviceProfile:
    """The profile of this machine's GPU that is the recorded one, or else of its model. _NotHere
    where there is none that can be used."""
    if not gpus_present():
        raise _NotHere(f"no {profile.name} is on this machine")
    try:
        present = _discover.find_gpus("auto", None)
    except EvotuneError as error:
        raise _NotHere(str(error)) from error
    same = [each for each in present if profile.id and each.id == profile.id]
    alike = [each for each in present if each.name == profile.name]
    if not same + alike:
        raise _NotHere(f"no {profile.name} is on this machine")
    return (same + alike)[0]


def _environment(profile: DeviceProfile) -> dict[str, str]:
    """The environment in which a child process has this GPU as its first one."""
    return {**os.environ, "CUDA_VISIBLE_DEVICES": profile.id}


def _device_ceilings(profile: DeviceProfile, dtype: str, missing: dict[str, str]) -> Ceilings:
    """The measured ceilings; where they cannot be measured, the model's, and the reason in
    `missing`."""
    try:
        here = _here(profile)
        return _ceilings.measured(here, dtype, _environment(here))
    except (_NotHere, _ceilings.NotMeasured) as error:
        missing["ceilings"] = str(error)
        return _ceilings.modelled(profile, dtype)


def _counters(request: EvidenceRequest) -> list[Counters]:
    """The counters of each launch."""
    environment = _environment(_here(request.profile))
    with scratch_folder() as folder:
        job = folder / "job"
        case = SanitizedCase(request.binary, request.plan, request.tensors, request.indices)
        job.write_bytes(encode(case))
        module = "evotune.backends.cuda.profiled_launch"
        seen = _nsight.profile(module, str(job), environment)
    if len(seen) != len(request.plan.launches):
        planned = len(request.plan.launches)
        raise _nsight.NoCounters(f"ncu saw {len(seen)} of {planned} launches")
    return [each.counters for each in seen]


def _planned(
    launch: Launch,
    resources: Mapping[str, Json],
    device: Mapping[str, Value],
    missing: dict[str, str],
) -> LaunchEvidence:
    own: Mapping[str, Json] = resources.get("entries", {}).get(launch.entry, resources)
    found = LaunchEvidence(
        kernel=launch.entry,
        blocks=math.prod(launch.grid),
        threads=launch.threads,
        shared_bytes=int(own.get("static_shared_bytes", 0)) + launch.shared_bytes,
    )
    return _with_occupancy(found, int(own.get("registers", 0)), device, missing)


def _profiled(
    seen: _nsight.ProfiledLaunch, device: Mapping[str, Value], missing: dict[str, str]
) -> LaunchEvidence:
    found = LaunchEvidence(
        kernel=seen.kernel,
        blocks=seen.grid,
        threads=seen.block,
        shared_bytes=seen.static_shared_bytes + seen.dynamic_shared_bytes,
        counters=seen.counters,
    )
    return _with_occupancy(found, seen.registers, device, missing)


def _with_occupancy(
    launch: LaunchEvidence, registers: int, device: Mapping[str, Value], missing: dict[str, str]
) -> LaunchEvidence:
    """The launch with its occupancy; without it, and the reason in `missing`, where it is not
    known."""
    if not registers:
        missing["occupancy"] = "the registers of the kernel are not known"
        return launch
    try:
        found = _limits.occupancy(
            device,
            threads=launch.threads,
            registers=registers,
            shared_bytes=launch.shared_bytes,
        )
        slots = int(device["multiprocessors"]) * found.blocks
        max_warps = int(device["threads_per_multiprocessor"]) // int(device["warp_size"])
    except KeyError as error:
        missing["occupancy"] = f"the device's profile has no {error.args[0]}"
        return launch
    if not slots:
        missing["occupancy"] = f"no block fits on a multiprocessor: {found.bound_by}"
        return launch
    occupancy = Occupancy(
        blocks_per_multiprocessor=found.blocks,
        bound_by=found.bound_by,
        limits=dict(found.fitting),
        warps=round(found.share * max_warps),
        max_warps=max_warps,
        waves=launch.blocks / slots,
    )
    return msgspec.structs.replace(launch, occupancy=occupancy)
