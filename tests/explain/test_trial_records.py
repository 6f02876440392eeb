"""Records of `benchmarks/explain_trials.py`: a later call goes on, and no item begins too late."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "explain_records", raising=False)
    return importlib.import_module("explain_records")


def test_a_later_call_goes_on_with_the_items_that_are_left(
    module: ModuleType, tmp_path: Path
) -> None:
    now = 0.0
    file = tmp_path / "records.json"

    def clock() -> float:
        return now

    first = module.Records(file, 1.0, 10.0, clock)
    assert first.wants("a")
    now = 25.0
    first.add({"name": "a", "time_us": 1})
    assert first.wants("b")  # by the item before it ends after 50 s
    now = 48.0
    first.add({"name": "b"})
    assert not first.wants("c")
    assert first.left == ["c"]

    later = module.Records(file, 1.0, 10.0, clock)
    assert not later.wants("a")
    assert later.left == []
    assert later.wants("c")
    later.add({"name": "c"})
    later.add({"name": "a", "time_us": 2})
    again = module.Records(file, None, 10.0, clock)
    assert again.items == [{"name": "b"}, {"name": "c"}, {"name": "a", "time_us": 2}]
