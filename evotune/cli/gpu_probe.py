"""What the GPU stack says, asked in a process of its own: a hanging driver hangs only that.

`python -m evotune.cli.gpu_probe` prints one JSON value a line: the GPUs that are present, then,
if there are any, why they cannot be used (empty when they can).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

TIMEOUT_S = 90.0  # importing torch alone takes ten seconds on a cold disk
_REAP_S = 2.0


@dataclass(frozen=True, slots=True)
class GpuState:
    """The GPUs found, and in one line why they cannot be used; "" when they can or none is."""

    gpus: tuple[str, ...]
    problem: str = ""


def probe(timeout_s: float = TIMEOUT_S, command: tuple[str, ...] = ()) -> GpuState:
    """Never raises and never waits much longer than `timeout_s`."""
    command = command or (sys.executable, "-m", "evotune.cli.gpu_probe")
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as expired:
        _kill(process)
        gpus, _ = _parse(expired.stdout or b"")
        return GpuState(gpus, f"the GPU driver did not answer within {timeout_s:g} s; fix: reboot")
    gpus, problem = _parse(output)
    if process.returncode:
        words = errors.decode(errors="replace").strip().splitlines()
        last = words[-1] if words else f"status {process.returncode}"
        return GpuState(gpus, f"asking for GPUs failed ({last})")
    return GpuState(gpus, problem)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """A process stuck in the driver may outlive even SIGKILL: it is not waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _parse(output: bytes) -> tuple[tuple[str, ...], str]:
    gpus: tuple[str, ...] = ()
    problem = ""
    for line in output.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # a library's own words
        if isinstance(value, list):
            gpus = tuple(str(name) for name in value)
        elif isinstance(value, str):
            problem = value
    return gpus, problem


def main() -> None:
    """The child's side."""
    from evotune.device.discover import cuda_problem, gpus_present

    gpus = gpus_present()
    print(json.dumps(gpus), flush=True)
    if gpus:
        print(json.dumps(cuda_problem()), flush=True)


if __name__ == "__main__":
    main()
