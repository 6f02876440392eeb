"""The words that a worker tells of a step are shown in a terminal."""

from __future__ import annotations

import pytest

from evotune.workers.device_slot import step_words


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("random cases 12 of 24", "random cases 12 of 24"),
        ("\x1b[2Jall is well\r\n", "[2Jall is well"),
        ("x" * 1000, "x" * 80),
    ],
)
def test_a_worker_cannot_move_the_cursor_or_fill_the_screen(told: str, shown: str) -> None:
    assert step_words(told) == shown
