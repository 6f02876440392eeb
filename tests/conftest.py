from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import evotune

# PyTorch's threads rest while they wait: spinning ones take the cores of the other tests, and a
# suite on two cores takes several times as long. To be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "survival.json"

KeepResult = Callable[..., None]


@pytest.fixture
def keep_result(request: pytest.FixtureRequest) -> KeepResult:
    """Keeps a campaign's figures as data, beside those of the other campaigns (`make soak`)."""

    def keep(**figures: object) -> None:
        results = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}
        name = request.node.name
        marker = "gpu" if request.node.get_closest_marker("gpu") else "soak"
        results[name] = {
            **figures,
            "command": f"python -m pytest -m {marker} -k {name}",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "evotune": evotune.__version__,
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
        }
        _RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n")

    return keep
