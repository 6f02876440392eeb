"""Queries the GPU libraries in a separate process, so that a hanging driver hangs only that
process.

`python -m evotune.backends.cuda.gpu_probe` prints one JSON value a line: the GPUs that are present,
then, if there are any, why they cannot be used (empty if they can), then their profiles. So the
process that asks loads neither torch nor CuPy, and makes no CUDA context.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evotune.backends.base.launch import DeviceProfile
from evotune.backends.base.time_limits import communicate
from evotune.backends.cuda.gpu_profiles import target
from evotune.trial import Json, Value
from evotune.util.processes import module_command

TIMEOUT_S = 90.0  # importing torch alone takes ten seconds on a cold disk
_REAP_S = 2.0


@dataclass(frozen=True, slots=True)
class GpuState:
    """The state of this machine's GPUs.

    - gpus: the names of the GPUs found.
    - problem: why they cannot be used, in one line; "" if they can, or if there is none.
    - profiles: the profiles of the GPUs that CUDA lists, in its order.
    """

    gpus: tuple[str, ...]
    problem: str = ""
    profiles: tuple[DeviceProfile, ...] = field(default=())


_SELF = "evotune.backends.cuda.gpu_probe"
_PRESENT = "present"


def ask_present_gpus() -> GpuState:
    """The state of this machine's GPUs. Starts a probe only if a GPU is known to be present."""
    return probe(command=module_command(_SELF, _PRESENT))


def probe(timeout_s: float = TIMEOUT_S, command: Sequence[str] = ()) -> GpuState:
    """Asks a child process for the state of the GPUs. Never raises, and waits hardly longer than
    `timeout_s`."""
    process = subprocess.Popen(
        command or module_command(_SELF),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = communicate(process, timeout_s)
    except subprocess.TimeoutExpired as expired:
        _kill(process)
        gpus = _parse(expired.stdout or b"").gpus
        return GpuState(gpus, f"the GPU driver did not answer within {timeout_s:g} s; fix: reboot")
    state = _parse(output)
    if process.returncode:
        words = errors.decode(errors="replace").strip().splitlines()
        last = words[-1] if words else f"status {process.returncode}"
        return GpuState(state.gpus, f"asking for GPUs failed ({last})")
    return state


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the child's group, and waits 2 s at most: a process stuck in the driver may outlive
    even SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _parse(output: bytes) -> GpuState:
    gpus: tuple[str, ...] = ()
    problem = ""
    profiles: Sequence[Json] = ()
    for line in output.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # printed by a library
        if isinstance(value, list):
            gpus = tuple(str(name) for name in value)
        elif isinstance(value, str):
            problem = value
        elif isinstance(value, dict):
            profiles = value.get("profiles", ())
    return GpuState(gpus, problem, tuple(DeviceProfile.from_json(item) for item in profiles))


def main() -> None:
    """Prints the answers, in the child process."""
    from evotune.backends.cuda.presence import cuda_problem, gpus_present

    gpus = gpus_present()
    print(json.dumps(gpus), flush=True)
    if not gpus and _PRESENT not in sys.argv:
        return
    problem = cuda_problem()
    print(json.dumps(problem), flush=True)
    if not problem:
        print(json.dumps({"profiles": [profile.to_json() for profile in profiles()]}))


# The profiles of this machine's GPUs, read from the CUDA runtime and from NVML.
#
# Reading them creates no CUDA context but loads the driver, so `probe` does it in a process of its
# own.
# cudaDeviceAttr by number: CuPy does not name them all, and the numbers are part of CUDA's ABI.
_ATTRIBUTES = {
    "threads_per_block": 1,
    "warp_size": 10,
    "registers_per_block": 12,
    "multiprocessors": 16,
    "l2_bytes": 38,
    "threads_per_multiprocessor": 39,
    "shared_bytes_per_multiprocessor": 81,
    "registers_per_multiprocessor": 82,
    "shared_bytes_per_block": 97,  # opt-in
    "blocks_per_multiprocessor": 106,
    "reserved_shared_bytes_per_block": 111,
}
_CLOCK_KHZ = 13
_MEMORY_CLOCK_KHZ = 36
_BUS_BITS = 37
_MAJOR, _MINOR = 75, 76

_TENSOR_FLOPS_PER_CLOCK = {
    **{75: 1024, 80: 2048, 86: 1024, 89: 1024, 90: 4096},
    **{100: 8192, 103: 8192, 120: 1024, 121: 1024},
}
"""By architecture, FLOPs of a multiprocessor: dense FP16 with float32 sums. From NVIDIA's
architecture white papers."""
_CLOCK_HEADROOM = 1.02  # a GPU may run a little above the clock that it reports
_DDR = 2  # transfers per clock


def profiles() -> list[DeviceProfile]:
    """The profile of every visible GPU, in CUDA's order. Raises ImportError, OSError or
    RuntimeError if there is none."""
    runtime = importlib.import_module("cupy").cuda.runtime
    with _management() as nvml:
        return [_profile(runtime, index, nvml) for index in range(int(runtime.getDeviceCount()))]


@contextlib.contextmanager
def _management() -> Iterator[Any]:
    """The driver's management library (NVML); None if it is missing or does not answer."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _profile(runtime: Any, index: int, nvml: Any) -> DeviceProfile:
    def attribute(number: int) -> int:
        return int(runtime.deviceGetAttribute(number, index))

    properties: Mapping[str, Any] = runtime.getDeviceProperties(index)
    attributes: dict[str, Value] = {name: attribute(number) for name, number in _ATTRIBUTES.items()}
    arch = 10 * attribute(_MAJOR) + attribute(_MINOR)
    memory_gbps = _DDR * attribute(_MEMORY_CLOCK_KHZ) * attribute(_BUS_BITS) / 8 / 1e6
    attributes |= {
        "arch": arch,
        "memory_bytes": int(properties["totalGlobalMem"]),
        "memory_gbps": round(memory_gbps, 1),
    }
    flops_per_clock = _TENSOR_FLOPS_PER_CLOCK.get(arch, 0) * int(attributes["multiprocessors"])
    return DeviceProfile(
        name=_text(properties["name"]),
        backend="cuda",
        arch=target(arch),
        attributes=attributes,
        peak_gflops=round(flops_per_clock * attribute(_CLOCK_KHZ) / 1e6 * _CLOCK_HEADROOM),
        id=_id(runtime, index, nvml),
        driver=_text(nvml.nvmlSystemGetDriverVersion()) if nvml else "",
    )


def _text(name: bytes | str) -> str:
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    return text.rstrip("\0")


def _id(runtime: Any, index: int, nvml: Any) -> str:
    """The GPU's name for CUDA_VISIBLE_DEVICES: GPU-… or MIG-…, or its number there if NVML does not
    report one.

    NVML is queried by PCI address, because it numbers GPUs in a different order. CuPy's `uuid` may
    be cut short.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = visible[index].strip() if index < len(visible) and visible[index] else str(index)
    if nvml is None or number.startswith("MIG"):  # a MIG slice has the whole GPU's address
        return number
    try:
        address = runtime.deviceGetPCIBusId(index)
        handle = nvml.nvmlDeviceGetHandleByPciBusId(address)
        return _text(nvml.nvmlDeviceGetUUID(handle))
    except (nvml.NVMLError, AttributeError, RuntimeError):
        return number


if __name__ == "__main__":
    main()
