"""The first proposals of a search, before there is anything to learn from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from evotune.search.kernel import Encoder
from evotune.trial import Configuration

_CANDIDATES: Final = 8
_SPREAD: Final = 0.5  # worth of distance to what was asked, beside closeness to the middle


def open_search(
    sample: Callable[[random.Random], Configuration | None],
    encoder: Encoder,
    asked: Sequence[Configuration],
    rng: random.Random,
) -> Configuration | None:
    """The best of a few samples: far from those asked before, near the middle of the domains.

    The far corners of a space (the fewest threads with the largest tile) hold its slowest
    configurations, and the ones that fail. None when `sample` gives none.
    """
    candidates = [found for _ in range(_CANDIDATES) if (found := sample(rng)) is not None]
    if not candidates:
        return None
    rows = np.array([encoder.row(c) for c in candidates], dtype=np.int64)
    eccentricity = sum(
        (
            np.abs(axis[rows[:, i]] - 0.5)
            for i, axis in enumerate(encoder.axes)
            if encoder.ordered[i]
        ),
        np.zeros(len(rows)),
    )
    distance = np.zeros(len(rows))
    if asked:
        others = np.array([encoder.row(c) for c in asked], dtype=np.int64)
        between = np.zeros((len(rows), len(others)))
        for i, axis in enumerate(encoder.axes):
            between += axis[np.abs(rows[:, i, None] - others[None, :, i])]
        distance = between.min(axis=1)
    return candidates[int(np.argmax(_SPREAD * distance - eccentricity))]
