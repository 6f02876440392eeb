"""The ceilings of a GPU: measured once where the GPU is here, else a model of published figures.

Per multiprocessor and clock, from the CUDA C Programming Guide ("Arithmetic instructions") and
NVIDIA's architecture white papers. The clock is the one that gives the published tensor core rate.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from evotune.backends import kept_ceilings
from evotune.backends.base.evidence import Ceilings
from evotune.backends.base.profile import DeviceProfile
from evotune.backends.cuda._discover import busy_gpu
from evotune.backends.cuda.ceiling_run import LIMIT_S
from evotune.util.python_process import module_command

_REVISION = 2
"""To be increased when the kernels or the way of measuring change."""
_TENSOR_DTYPES = {"float16": 75, "bfloat16": 80}
"""The dtypes of which tensor cores multiply, and the first architecture that does."""
_SHARED_BYTES = 128  # a multiprocessor and clock
_ISSUES = 4
_EXPONENTIALS = 16
_LIVE_HEADROOM = 1.02  # in the peak figure of a live profile, see `_live_profile`
_GEFORCE_SHARE = 0.5  # of the tensor core rate, with float32 sums


@dataclass(frozen=True, slots=True)
class _Rates:
    """Per multiprocessor and clock: FLOPs of the tensor cores (dense FP16) and float32 FMAs.
    `l2_bytes` is of the whole GPU; 0 where NVIDIA does not publish it."""

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
}


class NotMeasured(Exception):
    """Why the ceilings could not be measured, in one line."""


def modelled(profile: DeviceProfile, dtype: str) -> Ceilings:
    """The ceilings by published figures. Unknown ones are None, with a note."""
    attributes = profile.attributes
    arch, count = int(attributes.get("arch", 0)), int(attributes.get("multiprocessors", 0))
    dram = float(attributes.get("memory_gbps", 0)) * 1e9
    rates = _RATES.get(arch)
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


def measured(profile: DeviceProfile, dtype: str, environment: Mapping[str, str]) -> Ceilings:
    """The ceilings of a GPU that is here, kept from an earlier measurement or measured now. It
    takes about two seconds, some 200 ms of them on the GPU. Ceilings that were measured beside
    other work are not kept. NotMeasured where measuring fails."""
    bfloat = dtype == "bfloat16"
    attributes = profile.attributes
    facts = (
        *(_REVISION, profile.id or profile.name, profile.arch, profile.driver, bfloat),
        *(attributes["multiprocessors"], profile.peak_gflops, attributes["memory_bytes"]),
    )
    found = kept_ceilings.kept(facts)
    if found is None:
        disturbed = tuple(f"measured while {words}" for words in busy_gpu(profile))
        found = _measure(profile, environment, bfloat=bfloat)
        if disturbed:
            found = msgspec.structs.replace(found, notes=(*found.notes, *disturbed))
        else:
            kept_ceilings.keep(facts, found)
    arch = int(attributes["arch"])
    if not _on_tensor_cores(dtype, arch):
        return msgspec.structs.replace(found, tensor_flops=None)
    if found.tensor_flops is None:
        notes = (*found.notes, f"tensor cores of sm_{arch} by published figures, not measured")
        model = modelled(profile, dtype)
        return msgspec.structs.replace(found, tensor_flops=model.tensor_flops, notes=notes)
    return found


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
