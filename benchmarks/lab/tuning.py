"""Functions that the benchmarks share: derive a shipped space, tune it, and read its report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
EVOTUNE = [sys.executable, "-m", "evotune"]


def shipped(space: str) -> dict[str, Any]:
    """The data in search_spaces/`space`.yaml."""
    document: dict[str, Any] = yaml.safe_load((ROOT / f"search_spaces/{space}.yaml").read_text())
    return document


def derive(space: str, changes: Mapping[str, Any], path: Path) -> Path:
    """Writes search_spaces/`space`.yaml with top-level keys replaced (`problem`: merged)."""
    document = shipped(space)
    for key, value in changes.items():
        document[key] = {**document[key], **value} if key == "problem" else value
    document["root"] = str(ROOT)
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def tune(path: Path, runs_dir: Path, *options: str) -> dict[str, Any]:
    """Calls `evotune run` on a space file; returns the run's JSON report."""
    runs = ["--runs-dir", str(runs_dir)]
    subprocess.run([*EVOTUNE, "run", str(path), *options, *runs], check=True)
    data: dict[str, Any] = told("report", runs_dir)
    return data


def told(command: str, runs_dir: Path) -> Any:
    """The data that `evotune COMMAND latest --format json` prints."""
    words = [*EVOTUNE, command, "latest", "--format", "json", "--runs-dir", str(runs_dir)]
    return json.loads(subprocess.run(words, check=True, capture_output=True).stdout)


def champion(report: Mapping[str, Any]) -> dict[str, Any]:
    """The best confirmed trial."""
    confirmed = [trial for trial in report["trials"] if trial["confirmed"] and trial["rank"]]
    best: dict[str, Any] = min(
        confirmed, key=lambda t: (int(str(t["rank"]).rstrip("=")), -t["speedup_low"])
    )
    return best


def shape_of(batch: int, heads: int, length: int, head_dim: int) -> dict[str, int]:
    return {"batch": batch, "heads": heads, "seq_len": length, "head_dim": head_dim}


def environment(report: Mapping[str, Any]) -> dict[str, Any]:
    """The device and the versions of a run, without the command and the device's own id."""
    found = {name: value for name, value in report["environment"].items() if name != "command"}
    found["device"] = {name: value for name, value in found["device"].items() if name != "id"}
    return found
