"""Which logical CPUs the workers of one machine get."""

from __future__ import annotations

import pytest

from evotune.backends.base import cpu_cores
from evotune.backends.base.cpu_cores import shares


@pytest.mark.parametrize(
    ("core_of", "count", "wanted"),
    [
        (lambda cpu: cpu // 2, 2, [[0, 1, 4, 5], [2, 3, 6, 7]]),  # neighbours share a core
        (lambda cpu: cpu % 4, 2, [[0, 4, 2, 6], [1, 5, 3, 7]]),
        (lambda cpu: cpu, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (lambda cpu: cpu // 4, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),  # too few for whole ones
        (lambda cpu: cpu, 9, [[0], [1], [2], [3], [4], [5], [6], [7], []]),
    ],
)
def test_no_two_workers_share_a_core_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, core_of: object, count: int, wanted: list[list[int]]
) -> None:
    monkeypatch.setattr(cpu_cores, "core_of", core_of)
    assert shares(range(8), count) == wanted
