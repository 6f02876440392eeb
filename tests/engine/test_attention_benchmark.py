"""The file that `benchmarks/attention_cuda.py --confirm` writes."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_second_call_keeps_what_the_file_says_of_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "attention_cuda", raising=False)
    benchmark = importlib.import_module("attention_cuda")
    row = {"outcome": "ok", "reason": "", "seconds": 1.0, "device": None, "measurements": []}
    asked: list[tuple[str, ...]] = []

    def confirm(job: Any, record: object, *options: str) -> dict[str, Any]:
        asked.append(options)
        return {"name": job.name, **row}

    monkeypatch.setattr(benchmark, "confirm", confirm)
    output = tmp_path / "confirmed.json"
    records: dict[str, dict[str, object]] = {"mission full": {}, "large": {}}
    options = argparse.Namespace(
        only=["large"], output=output, baseline="fa4", layout="blhd", heat=0.0
    )
    benchmark.confirm_all(records, options)
    first = json.loads(output.read_text())
    assert {"command", "date", "torch"} <= first.keys()
    output.write_text(json.dumps({**first, "date": "then", "note": "8 cores"}))
    options.only, options.baseline, options.layout = [], "", ""
    benchmark.confirm_all(records, options)
    second = json.loads(output.read_text())
    assert (second["date"], second["note"]) == ("then", "8 cores")
    assert [each["name"] for each in second["confirmed"]] == ["large", "mission full"]
    assert asked == [("fa4", "blhd"), ("", "")]
