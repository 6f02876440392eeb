"""How long tests wait for what must happen, also on a machine with thirty busy processes.

A test that passes never waits so long. A test of a time-out uses something that never ends, with a
short limit of its own; nothing that must finish has that limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evotune.execute.compile_pool import CompilePool
    from evotune.execute.local import LocalExecutor

PATIENCE_S = 3600.0


@contextlib.contextmanager
def limited_trials(executor: LocalExecutor, seconds: float) -> Iterator[None]:
    """Ends each trial that is begun within the block after so many seconds."""
    limits = [slot._limits for slot in executor._devices]
    before = [each._longest_trial_s for each in limits]
    for each in limits:
        each._longest_trial_s = seconds
    try:
        yield
    finally:
        for each, longest_s in zip(limits, before, strict=True):
            each._longest_trial_s = longest_s


@contextlib.contextmanager
def limited_compiler(pool: CompilePool, seconds: float) -> Iterator[None]:
    """Ends each compilation that is begun within the block after so many seconds."""
    before = pool._timeout_s
    pool._timeout_s = seconds
    try:
        yield
    finally:
        pool._timeout_s = before
