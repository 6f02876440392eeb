"""`benchmarks/lab/explain_trials.py` without a device: a later call goes on, no item begins too
late, and an intervention counts the faster of two times."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from evotune.errors import UsageError

BenchmarkModule = Callable[[str], ModuleType]


def test_a_later_call_goes_on_with_the_items_that_are_left(
    benchmark_module: BenchmarkModule, tmp_path: Path
) -> None:
    module = benchmark_module("explain_records")
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
    now += 34.0
    assert later.wants("c")
    now += 2.0
    assert not later.wants("d")  # the item "a" of the call before took 25 s
    later.add({"name": "c"})
    later.add_summary(lambda records: {"name": "all", "changes": 2})
    again = module.Records(file, None, 10.0, clock)
    assert [(item["name"], item.get("item_s")) for item in again.items] == [
        ("a", 25.0),
        ("b", 23.0),
        ("c", 2.0),
        ("all", None),
    ]


def test_two_processes_measure_items_of_one_file(
    benchmark_module: BenchmarkModule, tmp_path: Path
) -> None:
    """As with a GPU each: neither loses what the other one wrote."""
    module, trials = benchmark_module("explain_records"), benchmark_module("explain_trials")
    file = tmp_path / "records.json"
    one, other = (module.Records(file, None, 1.0) for _ in range(2))
    kept = {"suggestions": [], "confirmed": True}
    assert one.wants("a")
    assert other.wants("b")
    one.add({"name": "a", **kept, "tried": 2, "right": 1})
    other.add({"name": "b", **kept, "confirmed": False, "tried": 1, "right": 1})
    one.add_summary(trials.confirmed_and_right)
    items = {item["name"]: item for item in json.loads(file.read_text())["items"]}
    assert list(items) == ["a", "b", "all"]
    counts = {"champions": 2, "confirmed": 1, "tried": 3, "right": 2}
    assert items["all"] == {"name": "all", **counts}


def test_a_suggestion_is_right_if_it_was_measured_to_be_faster(
    benchmark_module: BenchmarkModule,
) -> None:
    module = benchmark_module("explain_trials")
    suggestions = [
        {"configuration": {"A": 1}, "measured": 1.02},
        {"configuration": {"A": 2}, "measured": 0.98},
        {"configuration": {"A": 3}, "measured": None},  # it failed
        {"configuration": None, "measured": None},
    ]
    found = module.tries_of(suggestions)
    assert found == {"suggestions": suggestions, "tried": 3, "right": 1}


def options_of(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"smoke": False, "only": None, **changes})


def test_an_item_that_fails_does_not_keep_the_others(
    benchmark_module: BenchmarkModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = benchmark_module("explain_trials")
    file = tmp_path / "records.json"
    broken = {"b"}
    measured = []

    def measure(options: argparse.Namespace, name: str) -> Iterator[dict[str, Any]]:
        measured.append(name)
        if name in broken:
            raise UsageError("no such device")
        yield {"name": name, "changes": [{"predicted": 0.1, "measured": 0.2}] * 3}

    part = module.Part(measure, ["a", "b", "c"], [], 1.0, module.pooled)
    first = module.Records(file, None, 1.0)
    assert module.measure_part(part, options_of(), first) == ["b"]
    assert "b failed: no such device" in capsys.readouterr().err
    broken.clear()
    assert module.measure_part(part, options_of(), module.Records(file, None, 1.0)) == []
    assert measured == ["a", "b", "c", "b"]
    items = {item["name"]: item for item in json.loads(file.read_text())["items"]}
    assert items["all"]["spaces"] == ["a", "c", "b"]
    assert items["all"]["changes"] == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.json"]
    with pytest.raises(SystemExit, match="--only: no item d; there are: a, b, c"):
        part.chosen(options_of(only=["d"]))


@pytest.mark.parametrize(
    ("limiter", "times_us", "intervention", "ratio", "confirmed"),
    [
        # Half the head size: the champion's tiles are bad ones there, the search's are good.
        ("tensor cores", (72.0, 60.0), "head_dim halved", 100 / 60, True),
        ("tensor cores", (60.0, 72.0), "head_dim halved", 100 / 60, True),
        ("tensor cores", (72.0, None), "head_dim halved", 100 / 72, False),
        ("tensor cores", (None, 60.0), "head_dim halved", 100 / 60, True),
        # Too fast is as wrong as too slow: exponentials do not get fewer.
        ("MUFU", (90.0, 60.0), "head_dim halved", 100 / 60, False),
        ("latency: wait", (189.0, 160.0), "batch doubled", 1.6, True),
        ("latency: wait", (189.0, 178.0), "batch doubled", 1.78, False),
        # A unit that the item has no other shape for: twice the batch must take twice the time.
        ("ALU", (190.0, 130.0), "batch doubled", 1.3, False),
    ],
)
def test_an_intervention_counts_the_faster_of_two_kernels_at_the_other_shape(
    benchmark_module: BenchmarkModule,
    *,
    limiter: str,
    times_us: tuple[float | None, float | None],
    intervention: str,
    ratio: float,
    confirmed: bool,
) -> None:
    module = benchmark_module("explain_items")
    item = module.CHAMPIONS[5]
    same_us, found_us = times_us
    found = None if found_us is None else {"BLOCK_M": 64}
    other = module.OtherShape(same_us, found_us, found, 60)
    asked = []

    def timed(sizes: dict[str, Any]) -> Any:
        asked.append(sizes)
        return other

    record = module.intervention(item, limiter, 100.0, timed)
    assert asked == [item.doubled["head_dim" if "head" in intervention else "batch"]]
    assert record["intervention"] == intervention
    assert record["ratio"] == pytest.approx(ratio)
    assert record["confirmed"] is confirmed
    assert record["same_configuration"]["time_us"] == same_us
    assert record["search_there"]["time_us"] == found_us
    assert record["search_there"]["configuration"] == found
    json.dumps(record)


def test_a_shape_on_which_nothing_runs_is_not_an_intervention(
    benchmark_module: BenchmarkModule,
) -> None:
    module = benchmark_module("explain_items")
    item = module.CHAMPIONS[5]

    def timed(sizes: dict[str, Any]) -> Any:
        return module.OtherShape(200.0 if sizes["batch"] == 4 else None)

    record = module.intervention(item, "tensor cores", 100.0, timed)
    assert record["intervention"] == "batch doubled"
    assert record["confirmed"] is True
    assert record["search_there"]["time_us"] is None
    record = module.intervention(item, "", 100.0, timed)
    assert record == {"intervention": "none fits", "confirmed": False}


@pytest.mark.parametrize("runs_there", [True, False])
def test_the_search_at_the_other_shape_begins_with_the_champion_where_that_runs(
    benchmark_module: BenchmarkModule,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    runs_there: bool,
) -> None:
    module = benchmark_module("explain_items")
    item = module.CHAMPIONS[1]
    spaces = []

    def unconfirmed(path: Path, *_: object) -> dict[str, Any]:
        spaces.append(yaml.safe_load(path.read_text()))
        trial = {"confirmed": False, "speedup": 1.0, "time_us": 5.0, "configuration": {"WARPS": 2}}
        return {"trials": [trial]}

    monkeypatch.setattr(module, "time_us", lambda *_: 8.0 if runs_there else None)
    monkeypatch.setattr(module, "unconfirmed", unconfirmed)
    champion = {"WARPS": 4, "STAGES": 3}
    module.time_other_shape(item, champion, item.doubled["batch"], tmp_path, trials=5)
    assert (spaces[0]["default"] == champion) is runs_there
