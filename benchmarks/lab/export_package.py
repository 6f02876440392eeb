"""Tunes attention, exports it, and uses the package in a fresh process: results, dispatch, times.

    python benchmarks/lab/export_package.py [--space attention-mma] [--trials 40] [--champions 3]
        [--seed 0] [--device auto] [--target FOLDER] [-o FILE.json]

The space is tuned on its own shapes; of attention-mma these are (1,8,512,64) with and without the
causal mask. The package is installed with pip into FOLDER (a temporary one if not given), without a
network. `programs/exported_attention.py` then imports it in a process that cannot import evotune,
and compares results with SDPA and with float64, looks which calls are served, and times both sides
in turn. Prints one JSON record; exit code 1 when a check in it failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tuning import EVOTUNE, champion, environment, told

_NAME = "tuned_attention"
_PROGRAM = Path(__file__).parents[1] / "programs" / "exported_attention.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--space", default="attention-mma")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--champions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--target", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        record = measured(options, Path(made))
    text = json.dumps(record, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 0 if all(record["used"]["checks"].values()) else 1


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole way, in `folder`."""
    runs = folder / "runs"
    words = ["--trials", str(options.trials), "--seed", str(options.seed)]
    words += ["--champions", str(options.champions)]
    words += ["--device", options.device, "--runs-dir", str(runs)]
    subprocess.run([*EVOTUNE, "run", options.space, *words], stdout=sys.stderr, check=True)
    report = told("report", runs)
    best = champion(report)
    steps: dict[str, float] = {}
    package, target = folder / "package", options.target or folder / "site"
    export = [*EVOTUNE, "export", "latest", "-o", str(package), "--name", _NAME]
    exported = json.loads(
        timed(steps, "export_s", [*export, "--format", "json", "--runs-dir", str(runs)])
    )
    twice = folder / "twice"
    again = [str(twice) if word == str(package) else word for word in export]
    timed(steps, "second_export_s", [*again, "--runs-dir", str(runs)])
    same = subprocess.run(["diff", "-r", str(package), str(twice)], check=False).returncode == 0
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    timed(steps, "install_s", [*pip, "--target", str(target), str(package)])
    clean = {**os.environ, "PYTHONPATH": str(target)}
    used = json.loads(
        timed(steps, "use_s", [sys.executable, "-P", str(_PROGRAM), _NAME], environment=clean)
    )
    used["checks"]["second export is the same"] = same
    sizes = [path.stat().st_size for path in (package / _NAME).rglob("*") if path.is_file()]
    return {
        "command": ["python", "benchmarks/lab/export_package.py", *sys.argv[1:]],
        "date": time.strftime("%Y-%m-%d"),
        "space": options.space,
        "trials": options.trials,
        "seed": options.seed,
        "environment": environment(report),
        "champion": {
            name: best[name] for name in ("configuration", "time_us", "speedup", "speedup_low")
        },
        "exported": {"served": exported["served"], "files": len(sizes), "bytes": sum(sizes)},
        "steps_s": {name: round(seconds, 2) for name, seconds in steps.items()},
        "used": used,
    }


def timed(
    steps: dict[str, float],
    name: str,
    command: list[str],
    environment: dict[str, str] | None = None,
) -> str:
    """Runs a command, notes its seconds, and returns its stdout."""
    started = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    steps[name] = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
