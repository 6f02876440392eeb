"""Asks the GPU libraries in a process of its own: a hanging driver hangs only that process.

`python -m evotune.backends.cuda._probe` prints one JSON value a line: the GPUs that are present,
then, if there are any, why they cannot be used (empty when they can), then their profiles. So the
process that asks gets neither torch nor CuPy nor a CUDA context.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from evotune.backends.base.held_up import communicate
from evotune.backends.base.profile import DeviceProfile
from evotune.trial import Json
from evotune.util.processes import module_command

TIMEOUT_S = 90.0  # importing torch alone takes ten seconds on a cold disk
_REAP_S = 2.0


@dataclass(frozen=True, slots=True)
class GpuState:
    """The state of this machine's GPUs.

    - gpus: the names of the GPUs found.
    - problem: in one line, why they cannot be used; "" when they can, or when there is none.
    - profiles: those of the GPUs that CUDA lists, in its order.
    """

    gpus: tuple[str, ...]
    problem: str = ""
    profiles: tuple[DeviceProfile, ...] = field(default=())


_SELF = "evotune.backends.cuda._probe"
_PRESENT = "present"


def ask_present_gpus() -> GpuState:
    """Probes where a GPU is known to be here."""
    return probe(command=module_command(_SELF, _PRESENT))


def probe(timeout_s: float = TIMEOUT_S, command: Sequence[str] = ()) -> GpuState:
    """Asks a child process for the state. Never raises, nor waits much longer than `timeout_s`."""
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
    from evotune.backends.cuda._presence import cuda_problem, gpus_present

    gpus = gpus_present()
    print(json.dumps(gpus), flush=True)
    if not gpus and _PRESENT not in sys.argv:
        return
    problem = cuda_problem()
    print(json.dumps(problem), flush=True)
    if not problem:
        from evotune.backends.cuda import _live_profile

        print(json.dumps({"profiles": [profile.to_json() for profile in _live_profile.profiles()]}))


if __name__ == "__main__":
    main()
