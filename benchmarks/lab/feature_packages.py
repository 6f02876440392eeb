"""Tunes the cases of feature_models.py, and exports a package for each problem and dtype.

    python benchmarks/lab/feature_packages.py FOLDER [--items NAME...] [--dtypes float16]
        [--trials 60]
        [--minutes M] [--devices cuda:0] [--tiny] [-o FILE]

Each case of feature_cases.py has a run of its own. Its baseline is SDPA, which serves a program's
other calls. A run of FOLDER that is finished is kept, so the same command goes on where it was
stopped; nothing begins when `--minutes` are over. Prints a JSON record with the command that
measures the models. Exit code 1 where a case is left or a package is missing. `--tiny` makes
packages for the tiny models on the CPU with made up times, to try both commands without a GPU. It
needs the repository's tests.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feature_cases import Case, cases
from tuning import EVOTUNE, ROOT, champion, derive, shipped, told

_END_S = 20.0  # a run that is told to stop ends its processes
_EXPORT_S = 300.0
_PROBLEMS = {
    "attention_varlen": "feature_varlen",
    "attention_paged": "feature_paged",
}


@dataclass(frozen=True)
class Search:
    """A run for one case. `start` replaces values of the space's default configuration, and
    `baseline` that of the space."""

    name: str
    space: str
    shape: dict[str, Any]
    variant: dict[str, Any]
    start: dict[str, Any] = field(default_factory=dict)
    baseline: str = ""

    def problem(self, dtype: str) -> dict[str, Any]:
        return {
            "dtype": dtype,
            "shapes": [self.shape],
            "variants": [self.variant],
            "held_out": [],
        }


class Commands:
    """Makes commands until a time is over."""

    def __init__(self, minutes: float = math.inf) -> None:
        self._ends = time.monotonic() + 60 * minutes
        self._running: list[subprocess.Popen[bytes]] = []
        self._lock = threading.RLock()

    def is_over(self) -> bool:
        return time.monotonic() >= self._ends

    def stop(self, *_: Any) -> None:
        """The time is over now."""
        with self._lock:
            self._ends = -math.inf
            for process in self._running:
                process.terminate()

    def status(self, command: list[str]) -> int | None:
        """The command's exit code; None where the time was over before its end."""
        with self._lock:
            if self.is_over():
                return None
            process = subprocess.Popen(command, stdout=sys.stderr)
            self._running.append(process)
        try:
            left_s = self._ends - time.monotonic()
            code = process.wait(None if left_s == math.inf else max(0.0, left_s))
        except subprocess.TimeoutExpired:
            process.terminate()
            code = _ended(process)
        with self._lock:
            self._running.remove(process)
        return None if self.is_over() else code


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def search_of(case: Case, number: int, tiny: bool) -> Search:
    return Search(
        name=f"{number}_{case.item}",
        space=case.space_on_cpu if tiny else case.space,
        shape=case.shape,
        variant=case.variant,
        start={} if tiny else case.start,
        baseline="" if tiny else "sdpa:best",
    )


def made(options: argparse.Namespace, commands: Commands) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    packages: dict[str, str] = {}
    for dtype in options.dtypes:
        of: dict[str, list[str]] = {}
        for number, case in enumerate(cases(options.tiny)):
            if case.item not in options.items:
                continue
            search = search_of(case, number, options.tiny)
            runs.append(searched(options, search, dtype, options.devices[0], commands))
            of.setdefault(_PROBLEMS.get(case.space, "feature_attention"), []).append(
                runs[-1]["run"]
            )
        for name, found in of.items():
            packages[f"{name}_{dtype}"] = exported(
                options.folder / dtype / name, f"{name}_{dtype}", found
            )
    measure = ["python", "benchmarks/lab/feature_models.py", *filter(None, packages.values())]
    return {
        "runs": runs,
        "left": [f"{each['case']}_{each['dtype']}" for each in runs if not each["run"]],
        "packages": packages,
        "measure": " ".join([*measure, *(["--tiny"] if options.tiny else [])]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    items = list(dict.fromkeys(case.item for case in cases(tiny=False)))
    parser.add_argument("--items", nargs="+", choices=items, default=items, help="only for these")
    parser.add_argument("--dtypes", nargs="+", default=["float16"])
    parser.add_argument("--trials", type=int, default=60, help="of each run")
    parser.add_argument("--devices", nargs=1, default=["cuda:0"])
    parser.add_argument("--minutes", type=float, default=math.inf, help="then it ends")
    parser.add_argument("--tiny", action="store_true", help="packages for the CPU, not measured")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.tiny:
        options.dtypes, options.devices = ["float32"], ["cpu"]
    commands = Commands(options.minutes)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, commands.stop)
    record = made(options, commands)
    text = json.dumps(record, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 0 if all(record["packages"].values()) and not record["left"] else 1


def searched(
    options: argparse.Namespace, search: Search, dtype: str, device: str, commands: Commands
) -> dict[str, Any]:
    """The facts of the search's run, which is made unless an earlier command has made it. Without
    a `run` where the time was over, or the run failed."""
    folder = options.folder / "runs" / f"{search.name}_{dtype}"
    kept = folder / "facts.json"
    if kept.is_file():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    found = {"case": search.name, "space": search.space, "dtype": dtype, "status": None}
    found |= {"seconds": 0.0, "run": "", "speedup_low": None}
    if commands.is_over():
        return found
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
    folder.mkdir(parents=True)
    changes = {"name": f"{search.name}-{dtype}", "problem": search.problem(dtype)}
    if default := {**shipped(search.space).get("default", {}), **search.start}:
        changes["default"] = default
    if search.baseline:
        changes["baseline"] = search.baseline
    path = derive(search.space, changes, folder / "space.yaml")
    started = time.perf_counter()
    found |= _fabricated(path) if options.tiny else _run(options, search, path, device, commands)
    found["seconds"] = round(time.perf_counter() - started, 1)
    if found["run"]:
        kept.write_text(json.dumps(found))
    print(json.dumps(found), file=sys.stderr)
    return found


def _run(
    options: argparse.Namespace, search: Search, space: Path, device: str, commands: Commands
) -> dict[str, Any]:
    """Tunes the space in its folder."""
    words = ["--trials", str(options.trials), "--champions", "1", "--device", device, "-q"]
    others = sorted((options.folder / "runs").glob(f"{search.name}_*/facts.json"))
    if others:
        words += ["--warm-start", json.loads(others[0].read_text())["run"]]
    status = commands.status([*EVOTUNE, "run", str(space), *words, "--runs-dir", str(space.parent)])
    if status != 0:
        return {"status": status}
    report = told("report", space.parent)
    if not any(trial["confirmed"] and trial["rank"] for trial in report["trials"]):
        return {"status": status}
    run = str(space.parent / report["run"]["id"])
    return {"status": status, "run": run, "speedup_low": champion(report)["speedup_low"]}


def _fabricated(space: Path) -> dict[str, Any]:
    """A run of the space that is finished, with made up times."""
    sys.path[:0] = [str(ROOT)]
    making = importlib.import_module("tests.export.making")
    run = making.fabricated(space, space.parent, speedup=1000.0)  # more than a call costs
    return {"status": 0, "run": str(run.path), "speedup_low": None}


def exported(target: Path, name: str, runs: list[str]) -> str:
    """The module's folder of the package of these runs; "" where it cannot be made."""
    shutil.rmtree(target, ignore_errors=True)
    confirmed = [run for run in runs if run]
    if not confirmed:
        return ""
    command = [*EVOTUNE, "export", *confirmed, "-o", str(target), "--name", name]
    try:
        subprocess.run(command, stdout=sys.stderr, check=True, timeout=_EXPORT_S)
    except subprocess.SubprocessError as error:
        print(error, file=sys.stderr)
        return ""
    return str(target / name)


if __name__ == "__main__":
    sys.exit(main())
