from __future__ import annotations

import pytest

from evotune.backends.cuda import cuda_session
from evotune.backends.cuda.cuda_session import STACK, changes, read_limits


def test_what_differs_is_named_with_both_values() -> None:
    before = {STACK: 1024, "heap of malloc": 8 << 20}
    assert changes(before, before) == []
    words = "changed the device's heap of malloc from 8388608 to 16777216"
    assert changes(before, {**before, "heap of malloc": 16 << 20}) == [words]


def test_without_a_driver_there_are_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_session, "_driver", lambda: None)
    assert read_limits() == {}
