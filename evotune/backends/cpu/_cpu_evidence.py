"""Gathers the evidence of a kernel's call on this machine's processor, and of a baseline's."""

from __future__ import annotations

import json
import os
import subprocess

import msgspec

from evotune.backends.base import evidence
from evotune.backends.base.backend import SanitizedCase
from evotune.backends.base.evidence import (
    BaselineRequest,
    Ceilings,
    Evidence,
    EvidenceRequest,
    LaunchEvidence,
)
from evotune.backends.base.profile import DeviceProfile
from evotune.backends.cpu import _perf_counters, _x86_view, cpu_profile
from evotune.backends.cpu.counted_run import BASELINE, KERNEL
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cpu.cpu_ceiling_run import LIMIT_S
from evotune.errors import EnvironmentProblem
from evotune.util.channel import encode
from evotune.util.processes import module_command

_REVISION = 2
"""Increase it when the loops, the way of measuring or the stored figures change."""
_BINARY = "the baseline's machine code is not read"


class _NotMeasured(Exception):
    """Why the ceilings could not be measured, in one line."""


def gather(request: EvidenceRequest) -> Evidence:
    """See `Backend.gather_evidence`."""
    missing: dict[str, str] = {}
    launch = _launch(request.plan.entry, request.profile)
    if "static" not in request.without:
        try:
            view = _x86_view.static_view(request.binary)
            launch = msgspec.structs.replace(launch, static=view)
        except _x86_view.NoDisassembly as error:
            missing["static"] = str(error)
    case = SanitizedCase(request.binary, request.plan, request.tensors, request.indices)
    counted = "counters" not in request.without
    return _gathered(request.profile, launch, encode(case) if counted else b"", KERNEL, missing)


def gather_baseline(request: BaselineRequest) -> Evidence:
    """See `Backend.gather_baseline_evidence`."""
    missing = {"static": _BINARY}
    launch = _launch(request.baseline, request.profile)
    return _gathered(request.profile, launch, encode(request), BASELINE, missing)


def _launch(kernel: str, profile: DeviceProfile) -> LaunchEvidence:
    threads = int(profile.attributes.get("threads", 1))
    return LaunchEvidence(kernel=kernel, blocks=1, threads=threads, shared_bytes=0)


def _gathered(
    profile: DeviceProfile, launch: LaunchEvidence, job: bytes, kind: str, missing: dict[str, str]
) -> Evidence:
    """The evidence with ceilings and, where there is a `job`, counters; `missing` gets the reasons
    of those that cannot be had."""
    here = cpu_profile.profile(launch.threads)
    ceilings = modelled(profile)
    if (profile.name, profile.arch) != (here.name, here.arch):
        missing["ceilings"] = missing["counters"] = f"this machine has no {profile.name}"
    else:
        try:
            ceilings = measured(here)
        except _NotMeasured as error:
            missing["ceilings"] = str(error)
        if job:
            try:
                counters = _perf_counters.counters(kind, job, ceilings, launch.threads)
                launch = msgspec.structs.replace(launch, counters=counters)
            except _perf_counters.NotCounted as error:
                missing["counters"] = str(error)
    return Evidence(device=profile.name, ceilings=ceilings, launches=(launch,), unavailable=missing)


def modelled(profile: DeviceProfile) -> Ceilings:
    """The one ceiling that is known of a processor that is not here."""
    note = "an upper bound for any processor with these vectors, not measured"
    flops = profile.peak_gflops * 1e9
    return Ceilings(kind="model", fma_flops=flops or None, notes=(note,))


def measured(profile: DeviceProfile) -> Ceilings:
    """The ceilings of this machine, kept from an earlier measurement or measured now, in about two
    seconds. _NotMeasured where that fails."""
    try:
        compiler = CpuCompiler().version()
    except EnvironmentProblem as error:
        raise _NotMeasured(str(error)) from error
    threads = int(profile.attributes["threads"])
    facts = (_REVISION, profile.name, profile.arch, threads, compiler)
    found = evidence.kept(facts)
    if found is None:
        found = _measure(threads)
        evidence.keep(facts, found)
    return found


def _measure(threads: int) -> Ceilings:
    try:
        done = subprocess.run(
            module_command("evotune.backends.cpu.cpu_ceiling_run"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
    except subprocess.TimeoutExpired as error:
        raise _NotMeasured(f"the ceilings were not measured within {LIMIT_S:g} s") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        words = done.stderr.strip().splitlines()
        last = words[-1] if words else f"status {done.returncode}"
        raise _NotMeasured(f"the ceilings could not be measured: {last}")
    return msgspec.convert({"kind": "measured", **json.loads(lines[-1])}, Ceilings)
