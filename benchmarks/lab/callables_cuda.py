"""Shows what Python callables do on a GPU, line by line: outcomes, clocks and costs.

    python benchmarks/lab/callables_cuda.py [--part outcomes|clocks|costs ...] [--trials 9]
        [-o benchmarks/results/callables_DEVICE.json]

- outcomes: one run over the callables of tests/gpu/data/callables, right ones and others: how each
  trial ends, how its calls were made, and its time.
- clocks: the baseline's own work as a callable, at sizes from launch to bandwidth. Both sides must
  be equal, in several fresh hosts. And the baseline's time by the slope against CUDA events.
- costs: the seconds of a trial and of its stages; what a release, its end and the reading of a
  piece of an output cost, as the rest of the slope.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the callables and the trials are those of the tests

from evotune.backends.python.device_rows import OwnRow, SlopeSampler  # noqa: E402
from evotune.backends.python.device_session import (  # noqa: E402
    DeviceCallableSession,
    open_gpu_session,
)
from evotune.backends.python.host_device import GraphCapture  # noqa: E402
from evotune.user_code import trust  # noqa: E402
from tests.callables import callable_trials  # noqa: E402

PARTS = ("outcomes", "clocks", "costs")
SPACE = ROOT / "tests" / "gpu" / "data" / "callables" / "callables.yaml"
SIZES = ((8, 512), (256, 1024), (1024, 4096), (8192, 8192))
EVOTUNE = (sys.executable, "-m", "evotune")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    trust.ask = lambda paths: True
    with tempfile.TemporaryDirectory() as folder:
        parts: dict[str, Callable[[], Any]] = {
            "outcomes": lambda: outcomes(Path(folder)),
            "clocks": lambda: list(clocks(Path(folder), chosen.trials)),
            "costs": lambda: costs(Path(folder)),
        }
        found = {name: parts[name]() for name in chosen.part or PARTS}
    found |= {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
    }
    text = json.dumps(found, indent=2)
    if chosen.output:
        chosen.output.write_text(text + "\n")
    else:
        print(text)


def outcomes(folder: Path) -> list[dict[str, Any]]:
    """A row for each behaviour."""
    runs = ["--runs-dir", str(folder / "runs")]
    command = [*EVOTUNE, "run", str(SPACE), "--device", "cuda:0", "--champions", "1", *runs]
    subprocess.run(command, check=True, cwd=ROOT)
    report = [*EVOTUNE, "report", "latest", "--format", "jsonl", *runs]
    done = subprocess.run(report, check=True, capture_output=True, cwd=ROOT)
    rows = []
    for trial in map(json.loads, done.stdout.splitlines()):
        measured = next(iter(trial["measurements"]), {})
        state = measured.get("state", {})
        row = {
            "behaviour": trial["configuration"]["BEHAVIOUR"],
            "outcome": trial["outcome"],
            "reason": trial["reason"],
            **{name: state.get(name) for name in ("calls", "outputs")},
            **{name: measured.get(name) for name in ("time_us", "speedup_low", "speedup_high")},
            "stage_s": trial.get("stage_s"),
        }
        rows.append(row)
        print(*list(row.values())[:7], file=sys.stderr)
    return rows


def clocks(folder: Path, trials: int) -> Iterator[dict[str, Any]]:
    """A row for each size."""
    for rows, columns in SIZES:
        with trials_at(folder, rows, columns) as made:
            found = [made.run(BEHAVIOUR="new") for _ in range(trials)]
            measured = [each.measurements[0] for each in found if each.ok]
            x = torch.randn(rows, columns, device="cuda:0")
            row = {
                "rows": rows,
                "columns": columns,
                "ok": f"{len(measured)} of {trials}",
                "reasons": sorted({each.reason for each in found} - {""}),
                "time_us": [each.time_us for each in measured],
                "speedups": [each.speedup for each in measured],
                "covered": sum(e.speedup_low <= 1.0 <= e.speedup_high for e in measured),
                "slope_by_events": slope_by_events(lambda x=x: 2.0 * x + 1.0),
            }
            logs = [math.log(each) for each in row["speedups"]]
            row["median_speedup"] = math.exp(statistics.median(logs)) if logs else None
            print(row, file=sys.stderr)
            yield row


def slope_by_events(call: Callable[[], object]) -> float:
    """The time of a call by the slope of rows, divided by its time by events around a graph."""
    for _ in range(3):
        call()
    rng = random.Random(0)
    ends = torch.cuda.synchronize
    own = SlopeSampler(OwnRow([call] * 64, GraphCapture(), ends, captures=lambda: True), rng)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    from evotune.backends.cuda.cuda_session import GraphSampler

    events = GraphSampler([call] * 64, stream)
    pairs = [(own.time_us(), events.time_us()) for _ in range(20)]
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def costs(folder: Path) -> dict[str, Any]:
    """What a trial costs, and the part of a row that does not depend on its calls."""
    with trials_at(folder, 256, 1024) as made:
        stages = [made.run(BEHAVIOUR="given").stage_s for _ in range(5)]
        session = made.session
        assert isinstance(session, DeviceCallableSession)
        rests: list[float] = []
        plain = session.sampler

        def noted(calls: Any, *, untimed: int = 0) -> Any:
            sampler = plain(calls, untimed=untimed)
            row = sampler._row
            if not isinstance(row, OwnRow):
                rests.extend(row.time_us(0, complement=False) for _ in range(50))
            return sampler

        session.sampler = noted  # type: ignore[method-assign]
        made.run(BEHAVIOUR="given")
    return {
        "stage_s": stages,
        "empty_row_us": {
            "median": statistics.median(rests),
            "least": min(rests),
            "most": max(rests),
        },
    }


def trials_at(folder: Path, rows: int, columns: int) -> Any:
    """Trials of the callables at one shape."""
    space = yaml.safe_load(SPACE.read_text())
    space["problem"]["shapes"] = [{"rows": rows, "columns": columns}]
    space["root"] = str(SPACE.parent)
    path = folder / f"space_{rows}_{columns}.yaml"
    path.write_text(yaml.safe_dump(space))
    scratch = folder / f"binaries_{rows}_{columns}"
    scratch.mkdir(exist_ok=True)
    return callable_trials(path, scratch, "cuda:0", open_gpu_session)


if __name__ == "__main__":
    main()
