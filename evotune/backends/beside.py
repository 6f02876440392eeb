"""Names the other work on the machine when a run begins, since it makes times longer."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from evotune.backends.registry import named
from evotune.device.profile import DeviceProfile

_LOOK_S = 0.2
_BUSY_CORES = 0.3  # less is what a desktop does anyway
_IDLE_FIELDS = (3, 4)  # of a line of /proc/stat: idle, and waiting for a disk
_GUEST_FIELDS = 8  # the fields from here on (guest time) are part of earlier ones
_WORKER = b"evotune.execute.device_worker"


def others_at_work(devices: Sequence[DeviceProfile]) -> list[str]:
    """A line in words for each: cores that other processes keep busy, other runs of evotune that
    measure, devices at work. Call it before this process starts workers. Takes 0.2 s."""
    found = [*_busy_cores(), *_other_runs()]
    for device in devices:
        found += named(device.backend).others_at_work(device)
    return found


def _busy_cores() -> Iterator[str]:
    cores = os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError, IndexError):
        before, own_s, started_s = _busy_ticks(), time.process_time(), time.monotonic()
        time.sleep(_LOOK_S)
        spent_s = (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK")
        spent_s -= time.process_time() - own_s
        busy = spent_s / (time.monotonic() - started_s)
        if busy > _BUSY_CORES:
            yield f"other processes keep {busy:.1f} of {cores} cores busy"


def _busy_ticks() -> int:
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(fields[:_GUEST_FIELDS]) - sum(fields[i] for i in _IDLE_FIELDS)


def _other_runs() -> Iterator[str]:
    """Other runs of evotune: their device workers name another parent than this process."""
    parents = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = path.read_bytes().split(b"\0")
            if _WORKER in words:
                parents.add(int(words[words.index(_WORKER) + 1]))
    for parent in sorted(parents - {os.getpid()}):
        yield f"another evotune run is measuring (process {parent})"
