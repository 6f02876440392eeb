"""Whole models that are tuned: see benchmarks/models.py."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evotune.api import model_timing, model_tuning
from evotune.timing.paired import TimingSettings
from tests.api.tiny_models import made_up_searches
from tests.export.making import ROOT
from tests.patience import PATIENCE_S

Benchmarks = Callable[[str], ModuleType]
OWN = {  # the share of calls that are served
    **{"vit-b16": "1/1", "siglip-b": "2/2", "swin-b": "3/3", "unet-block": "2/2"},
    "decoder-loop": "4/4",
}
OF_TRANSFORMERS = {
    **{"t5-base": "0/1", "bert-padded": "0/1", "mistral-window": "0/1"},
    **{"qwen2": "1/1", "whisper": "1/1"},
}


def tuned(script: ModuleType, name: str, folder: Path) -> dict[str, Any]:
    options = argparse.Namespace(tiny=True, folder=folder, minutes=None, trials=8)
    options.misses_only = False
    quick = TimingSettings(min_rounds=2, max_rounds=2, sample_us=1.0)
    with pytest.MonkeyPatch.context() as patch, made_up_searches():
        patch.setattr(model_timing, "OF_MODELS", quick)
        patch.setattr(model_timing, "OF_CALLS", quick)
        patch.setattr(model_tuning, "_COMPILER", "eager")
        found: dict[str, Any] = script.measured(name, options)
    return found


def served(record: dict[str, Any]) -> str:
    calls = record["calls"]
    return f"{sum(call['gain'] is not None for call in calls)}/{len(calls)}"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", OWN)
def test_a_tiny_model_is_tuned(benchmark_module: Benchmarks, name: str, tmp_path: Path) -> None:
    record = tuned(benchmark_module("models"), name, tmp_path)
    assert (served(record), record["fault"]) == (OWN[name], "")
    assert json.loads(json.dumps(record)) == record


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_a_tiny_model_of_transformers_is_tuned(
    benchmark_module: Benchmarks, name: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    record = tuned(benchmark_module("models"), name, tmp_path)
    assert (served(record), record["fault"]) == (OF_TRANSFORMERS[name], "")


@pytest.mark.soak
def test_records_are_appended(tmp_path: Path) -> None:
    words = ("--tiny", "--models", "vit-b16", "--trials", "1", "--folder", "tuned", "-o", "f.json")
    script = ROOT / "benchmarks" / "models.py"
    for count in (1, 2):
        subprocess.run([sys.executable, script, *words], cwd=tmp_path, check=True)
        records = json.loads((tmp_path / "f.json").read_text())
        assert [record["model"] for record in records] == count * ["vit-b16"]
    done = subprocess.run(
        [sys.executable, script, "--table", "f.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.count("vit-b16") == 1


def test_the_table_has_the_last_record_of_each_model(benchmark_module: Benchmarks) -> None:
    gain = {"speedup": 2.0, "low": 1.9, "high": 2.1}
    record = {"model": "vit-b16", "dtype": "float16", "served": 1.0, "attention": gain}
    record |= {"gains": {"eager": gain}, "fault": "", "calls": []}
    half = {**record, "attention": {**gain, "speedup": 0.5}, "model": "swin-b"}
    lost = {"model": "t5-base", "failed": "the process ended with 1"}
    lines = benchmark_module("models").table([half, record, lost, record]).splitlines()
    assert len(lines) == 5
    assert lines[1].startswith("swin-b ")
    assert lines[2].split() == [
        *("vit-b16", "100.0%", "2.000", "[1.900,", "2.100]", "2.000", "[1.900,", "2.100]"),
        *("-", "-", "float16"),
    ]
    assert lines[3] == "t5-base         the process ended with 1"
    assert lines[4] == "attention, geometric mean of 2: 1.000x"
