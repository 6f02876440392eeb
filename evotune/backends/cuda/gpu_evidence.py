"""Gathers the evidence of a case's launches on a GPU, and of a baseline's."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from evotune.backends.base import evidence
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
from evotune.backends.base.launch import DeviceProfile, Launch, entry_resources, resources_of
from evotune.backends.cuda import discovery, gpu_limits, nsight, static_view
from evotune.backends.cuda.ceiling_run import LIMIT_S
from evotune.backends.cuda.discovery import busy_gpu
from evotune.backends.cuda.presence import gpus_present
from evotune.errors import EvotuneError
from evotune.trial import NamedFigures, Value, whole
from evotune.util.channel import encode
from evotune.util.files import scratch_folder
from evotune.util.processes import module_command

_BINARY = "the baseline's machine code is not read"


class _NotHere(Exception):
    """Why the GPU cannot be used, in one line."""


def gather(request: EvidenceRequest) -> Evidence:
    """See `Backend.gather_evidence`."""
    missing: dict[str, str] = {}
    profile = request.profile
    resources = with_registers(request.resources, Path(request.binary))
    request = msgspec.structs.replace(request, resources=resources)
    ceilings = _device_ceilings(profile, request.dtype, missing)
    views: Mapping[str, StaticView] = {}
    if "static" not in request.without:
        try:
            views = static_view.static_views(request)
        except static_view.NoStaticView as error:
            missing["static"] = str(error)
    counters: Sequence[Counters | None] = [None] * len(request.plan.launches)
    if "counters" not in request.without:
        try:
            counters = _counters(request)
        except (_NotHere, nsight.NoCounters) as error:
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
            seen = nsight.profile(module, str(job), environment)
        launches = tuple(_profiled(each, profile.attributes, missing) for each in seen)
    except (_NotHere, nsight.NoCounters) as error:
        missing["counters"] = missing["launches"] = str(error)
    return Evidence(device=profile.name, ceilings=ceilings, launches=launches, unavailable=missing)


def _here(profile: DeviceProfile) -> DeviceProfile:
    """The profile of the recorded GPU if it is in this machine, else of one of the same model.
    Raises _NotHere if none can be used."""
    if not gpus_present():
        raise _NotHere(f"no {profile.name} is on this machine")
    try:
        present = discovery.find_gpus("auto", None)
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
    """The measured ceilings. If they cannot be measured, the model's, with the reason in
    `missing`."""
    try:
        here = _here(profile)
        return measured(here, dtype, _environment(here))
    except (_NotHere, NotMeasured) as error:
        missing["ceilings"] = str(error)
        return modelled(profile, dtype)


def _counters(request: EvidenceRequest) -> list[Counters]:
    """The counters of each launch."""
    environment = _environment(_here(request.profile))
    with scratch_folder() as folder:
        job = folder / "job"
        case = SanitizedCase(request.binary, request.plan, request.tensors, request.indices)
        job.write_bytes(encode(case))
        module = "evotune.backends.cuda.profiled_launch"
        seen = nsight.profile(module, str(job), environment)
    if len(seen) != len(request.plan.launches):
        planned = len(request.plan.launches)
        raise nsight.NoCounters(f"ncu saw {len(seen)} of {planned} launches")
    return [each.counters for each in seen]


def _planned(
    launch: Launch,
    resources: NamedFigures,
    device: Mapping[str, Value],
    missing: dict[str, str],
) -> LaunchEvidence:
    own = resources_of(launch.entry, resources)
    found = LaunchEvidence(
        kernel=launch.entry,
        blocks=math.prod(launch.grid),
        threads=launch.threads,
        shared_bytes=whole(own, "static_shared_bytes") + launch.shared_bytes,
    )
    return _with_occupancy(found, whole(own, "registers"), device, missing)


def _profiled(
    seen: nsight.ProfiledLaunch, device: Mapping[str, Value], missing: dict[str, str]
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
    """The launch with its occupancy. If that is unknown, without it, and `missing` gets the
    reason."""
    if not registers:
        missing["occupancy"] = "the registers of the kernel are not known"
        return launch
    try:
        found = gpu_limits.occupancy(
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


# The ceilings of a GPU: measured once where the GPU is here, else a model of published figures.
#
# Per multiprocessor and clock, from the CUDA C Programming Guide ("Arithmetic instructions") and
# NVIDIA's architecture white papers. The clock is the one that gives the published tensor core
# rate.
_REVISION = 2
"""To be increased when the kernels or the way of measuring change."""
_TENSOR_DTYPES = {"float16": 75, "bfloat16": 80}
"""The dtypes that tensor cores multiply, each with the first architecture that does."""
_SHARED_BYTES = 128  # a multiprocessor and clock
_ISSUES = 4
_EXPONENTIALS = 16
_LIVE_HEADROOM = 1.02  # in the peak figure of a live profile, see `_live_profile`
_GEFORCE_SHARE = 0.5  # of the tensor core rate, with float32 sums


@dataclass(frozen=True, slots=True)
class _Rates:
    """Per multiprocessor and clock: FLOPs of the tensor cores (dense FP16) and float32 FMAs.
    `l2_bytes` is of the whole GPU; 0 if NVIDIA does not publish it."""

    tensor_flops: int
    fmas: int
    l2_bytes: int = 0


_RATES = {
    75: _Rates(1024, 64),
    80: _Rates(2048, 64, 5120),
    86: _Rates(1024, 128),
    89: _Rates(1024, 128),
    90: _Rates(4096, 128),
    100: _Rates(8192, 128),
    103: _Rates(8192, 128),
    120: _Rates(1024, 128),
    121: _Rates(1024, 128),
}
_SLOWER = {"NVIDIA H20": _Rates(956, 128)}
"""Products whose tensor cores are slower than their architecture's."""


def measured(profile: DeviceProfile, dtype: str, environment: Mapping[str, str]) -> Ceilings:
    """The ceilings of a GPU of this machine, from an earlier measurement or measured now. Measuring
    takes about two seconds, about 200 ms of them on the GPU. Ceilings that were measured during
    other work are not stored. Raises NotMeasured if measuring fails."""
    bfloat = dtype == "bfloat16"
    attributes = profile.attributes
    facts = (
        *(_REVISION, profile.id or profile.name, profile.arch, profile.driver, bfloat),
        *(attributes["multiprocessors"], profile.peak_gflops, attributes["memory_bytes"]),
    )
    found = evidence.kept(facts)
    if found is None:
        disturbed = tuple(f"measured while {words}" for words in busy_gpu(profile))
        found = _measure(profile, environment, bfloat=bfloat)
        if disturbed:
            found = msgspec.structs.replace(found, notes=(*found.notes, *disturbed))
        else:
            evidence.keep(facts, found)
    arch = int(attributes["arch"])
    if not _on_tensor_cores(dtype, arch):
        return msgspec.structs.replace(found, tensor_flops=None)
    if found.tensor_flops is None:
        notes = (*found.notes, f"tensor cores of sm_{arch} by published figures, not measured")
        model = modelled(profile, dtype)
        return msgspec.structs.replace(found, tensor_flops=model.tensor_flops, notes=notes)
    return found


class NotMeasured(Exception):
    """Raised if the ceilings cannot be measured. The message is the reason, one line."""


def modelled(profile: DeviceProfile, dtype: str) -> Ceilings:
    """The ceilings from published figures. Unknown ones are None, with a note."""
    attributes = profile.attributes
    arch, count = int(attributes.get("arch", 0)), int(attributes.get("multiprocessors", 0))
    dram = float(attributes.get("memory_gbps", 0)) * 1e9
    rates = _SLOWER.get(profile.name, _RATES.get(arch))
    if rates is None or not (count and profile.peak_gflops):
        note = f"no published rates are known for sm_{arch}"
        return Ceilings(kind="model", dram_bytes_per_s=dram or None, notes=(note,))
    tensor_flops = profile.peak_gflops * 1e9 / (_LIVE_HEADROOM if profile.id else 1.0)
    per_clock = float(rates.tensor_flops)
    geforce = "GeForce" in profile.name
    if geforce and profile.id:
        clock = tensor_flops / (per_clock * count)
        tensor_flops *= _GEFORCE_SHARE
    else:
        clock = tensor_flops / (per_clock * (_GEFORCE_SHARE if geforce else 1.0) * count)
    notes = [f"published figures at {clock / 1e9:.2f} GHz, not measured", _launch_note()]
    if not rates.l2_bytes:
        notes.append("the bandwidth of L2 is not published")
    return Ceilings(
        kind="model",
        tensor_flops=tensor_flops if _on_tensor_cores(dtype, arch) else None,
        fma_flops=2 * rates.fmas * count * clock,
        exp2_per_s=_EXPONENTIALS * count * clock,
        issue_per_s=_ISSUES * count * clock,
        shared_bytes_per_s=_SHARED_BYTES * count * clock,
        l2_bytes_per_s=rates.l2_bytes * clock or None,
        dram_bytes_per_s=dram or None,
        notes=tuple(notes),
    )


def _launch_note() -> str:
    return "the time of a launch is known only where the GPU is"


def _on_tensor_cores(dtype: str, arch: int) -> bool:
    return arch >= _TENSOR_DTYPES.get(dtype, arch + 1)


def _measure(profile: DeviceProfile, environment: Mapping[str, str], *, bfloat: bool) -> Ceilings:
    module = "evotune.backends.cuda.ceiling_run"
    try:
        done = subprocess.run(
            module_command(module, profile.arch, str(int(bfloat))),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            env=dict(environment),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotMeasured(f"the ceilings were not measured within {LIMIT_S:g} s") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        words = done.stderr.strip().splitlines()
        last = words[-1] if words else f"status {done.returncode}"
        raise NotMeasured(f"the ceilings could not be measured: {last}")
    return msgspec.convert({"kind": "measured", **json.loads(lines[-1])}, Ceilings)


# Reads the registers of each kernel from a cubin, for binaries that came without a compiler's log.
#
# A cubin is an ELF file. Its section `.nv.info` is a row of attributes; the one of registers names
# a symbol and its count. (Before CUDA 13 the count was also in the code section's `sh_info`.)
_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ATTRIBUTE = struct.Struct("<BBH")
_PAIR = struct.Struct("<II")
_SIZED = 4  # the format of an attribute whose value follows, with its size in the attribute
_REGISTERS = 0x2F
_INFO = 0x70000000
_SYMBOLS = 2


def with_registers(resources: NamedFigures, binary: Path) -> NamedFigures:
    """The compiler's figures of the binary. If they lack a function's registers, the binary's own
    count is used."""
    entries = dict(entry_resources(resources))
    for name, count in read_registers(binary).items():
        entries[name] = {"registers": count, **entries.get(name, {})}
    return {**resources, "entries": entries} if entries else resources


def read_registers(binary: Path) -> dict[str, int]:
    """The registers of a thread of each function; {} if the file is no such cubin."""
    try:
        return dict(_registers(binary.read_bytes()))
    except (OSError, struct.error, IndexError, ValueError):
        return {}


def _registers(data: bytes) -> Iterator[tuple[str, int]]:
    if not data.startswith(_MAGIC):
        return
    header = _HEADER.unpack_from(data)
    start, size, number, names_at = header[6], header[11], header[12], header[13]
    sections = [_SECTION.unpack_from(data, start + each * size) for each in range(number)]
    section_names = sections[names_at][4]
    symbols = next((each for each in sections if each[1] == _SYMBOLS), None)
    info = next(
        (
            each
            for each in sections
            if each[1] == _INFO and _text(data, section_names + each[0]) == ".nv.info"
        ),
        None,
    )
    if info is None or symbols is None:
        return
    symbol_names = sections[symbols[6]][4]
    at, end = info[4], info[4] + info[5]
    while at < end:
        form, name, value = _ATTRIBUTE.unpack_from(data, at)
        at += _ATTRIBUTE.size
        if form != _SIZED:
            continue
        if name == _REGISTERS:
            symbol, count = _PAIR.unpack_from(data, at)
            found = _SYMBOL.unpack_from(data, symbols[4] + symbol * _SYMBOL.size)
            yield _text(data, symbol_names + found[0]), count
        at += value


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
