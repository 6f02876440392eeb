from __future__ import annotations

from evotune.backends.cuda._state import STACK, changes, read_limits


def test_what_differs_is_named_with_both_values() -> None:
    before = {STACK: 1024, "heap of malloc": 8 << 20}
    assert changes(before, before) == []
    words = "changed the device's heap of malloc from 8388608 to 16777216"
    assert changes(before, {**before, "heap of malloc": 16 << 20}) == [words]


def test_limits_can_be_asked_without_a_device() -> None:
    assert all(isinstance(value, int) for value in read_limits().values())
