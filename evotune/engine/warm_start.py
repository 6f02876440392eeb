"""The best of an earlier run as the first proposals of a new one."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Final

from evotune.engine.folder import RunFolder
from evotune.errors import UsageError
from evotune.space.protocol import SearchSpace
from evotune.store import RunStore
from evotune.trial import Configuration

_STARTS: Final = 8


def warm_starts(
    space: SearchSpace, first: Sequence[Configuration], run: RunFolder
) -> list[Configuration]:
    """The configurations to try `first`, then the run's best, brought into this space.

    The run may be of another shape, device or version of the space: parameters that it lacks get
    their defaults, and a configuration that is not valid here is repaired. UsageError when the run
    has no valid configuration, or shares no parameter with the space.
    """
    with RunStore.open_for_reading(run.store) as store:
        best = store.best(before=sys.maxsize)
        if best is None:
            raise UsageError(f"run {run.id} has no valid configuration to start from")
        names = {parameter.name for parameter in space.parameters}
        if not names & best.configuration.keys():
            raise UsageError(f"run {run.id} shares no parameter with this space")
        starts = dict.fromkeys(first)
        most = len(starts) + _STARTS
        for trial in store.best_first():
            if len(starts) == most:
                break
            known = {name: value for name, value in trial.configuration.items() if name in names}
            repaired = space.repair({**space.default(), **known}, random.Random(0))
            if repaired is not None:
                starts[repaired] = None
    return list(starts)
