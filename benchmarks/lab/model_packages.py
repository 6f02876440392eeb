"""Tunes attention for the models of export_models.py, and exports a package for each dtype.

    python benchmarks/lab/model_packages.py FOLDER [--dtypes float16 bfloat16] [--trials 60]
        [--only RUN ...] [--minutes M] [--devices cuda:0 ...] [--tiny] [-o FILE]

Each case of benchmarks/cases/models.yaml has a run of its own, and so a champion of its own, in the
spaces that suit it: attention-wgmma for long sequences, attention-mma for short ones, attention-
mma-decode for one query. A run begins with a configuration that was good at a case like its own
(attention_cuda.py), or with the best ones of the other dtype's run. A GPU measures one run at a
time; several devices share the runs. Nothing new begins when `--minutes` are over, and the runs in
progress are stopped; then the packages have the kernels of the finished runs. A run of FOLDER that
is finished is kept, so the same command goes on where it was stopped. `--only` names the runs to
make, such as 32x1x4096x128_attention_mma_decode.

The packages are FOLDER/DTYPE/model_attention_DTYPE. Prints one JSON record: for each run its
seconds and its best speedup, the cases that are `left`, and the command that measures the models.
Exit code 1 where a case is left or a package is missing. On an H200:

    python benchmarks/lab/model_packages.py PACKAGES --minutes 15 -o packages.json
    python benchmarks/lab/export_models.py PACKAGES/float16/model_attention_float16 \\
        PACKAGES/bfloat16/model_attention_bfloat16 --ways graph eager --minutes 5 \\
        -o benchmarks/results/export_models_h200.json

There are 20 runs of 60 trials. Those of benchmarks/results/attention_h200.json, of 80 to 120
trials, took 12 to 43 s each. Either command goes on where it was stopped when it is given again.

`--tiny` makes a package for the tiny models on the CPU, to try both commands without a GPU. Its
kernels are compiled, and its times are made up: a kernel of 15 us gains less there than a call
costs, so no package would have it, and on a busy machine each run took ten minutes. It needs the
repository's tests.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from attention_cuda import HOPPER_128, HOPPER_ONE_WAVE, HOPPER_SMALL, LONG, WIDE_TILES
from tuning import EVOTUNE, ROOT, champion, derive, shipped, told

_CASES = ROOT / "benchmarks" / "cases" / "models.yaml"
_MMA, _WGMMA, _DECODE = "attention_mma", "attention_wgmma", "attention_mma_decode"
_END_S = 20.0  # a run that is told to stop ends its processes
_EXPORT_S = 300.0
Shape = dict[str, Any]


@dataclass(frozen=True)
class Search:
    """A run for one case. `start` replaces values of the space's default configuration, and
    `baseline` that of the space."""

    name: str
    space: str
    shape: Shape
    causal: bool
    start: dict[str, Any] = field(default_factory=dict)
    baseline: str = ""

    def problem(self, dtype: str) -> dict[str, Any]:
        longer = {**self.shape, "seq_len_k": self.shape["seq_len_k"] - 12}
        if self.shape["seq_len_q"] > 1:
            longer["seq_len_q"] = self.shape["seq_len_q"] - 12
        return {
            "dtype": dtype,
            "shapes": [self.shape],
            "variants": [{"causal": self.causal}],
            "held_out": [longer],
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16"])
    parser.add_argument("--trials", type=int, default=60, help="of each run")
    parser.add_argument("--only", nargs="+", metavar="RUN", help="make only these runs")
    parser.add_argument("--devices", nargs="+", default=["cuda:0"])
    parser.add_argument("--minutes", type=float, default=math.inf, help="then it ends")
    parser.add_argument("--tiny", action="store_true", help="a package for the CPU, not measured")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.tiny:
        options.dtypes, options.devices = ["float32"], ["cpu"]
    commands = Commands(options.minutes)
    signal.signal(signal.SIGTERM, commands.stop)
    signal.signal(signal.SIGINT, commands.stop)
    record = made(options, commands)
    text = json.dumps(record, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 0 if all(record["packages"].values()) and not record["left"] else 1


def made(options: argparse.Namespace, commands: Commands) -> dict[str, Any]:
    started = time.perf_counter()
    devices: queue.Queue[str] = queue.Queue()
    for device in options.devices:
        devices.put(device)

    def run(search: Search, dtype: str) -> dict[str, Any]:
        device = devices.get()
        try:
            return searched(options, search, dtype, device, commands)
        finally:
            devices.put(device)

    runs: list[dict[str, Any]] = []
    packages: dict[str, str] = {}
    searches = chosen(_tiny() if options.tiny else tuple(searches_of(_CASES)), options.only)
    for dtype in options.dtypes:
        with ThreadPoolExecutor(len(options.devices)) as pool:
            found = list(pool.map(lambda search, dtype=dtype: run(search, dtype), searches))
        runs += found
        name = f"model_attention_{dtype}"
        packages[dtype] = exported(options.folder / dtype, name, [each["run"] for each in found])
    paths = [path for path in packages.values() if path]
    measure = ["python", "benchmarks/lab/export_models.py", *paths]
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "runs": runs,
        "left": [f"{each['case']}_{each['dtype']}" for each in runs if not each["run"]],
        "packages": packages,
        "measure": " ".join([*measure, *(["--tiny"] if options.tiny else [])]),
    }


def searches_of(path: Path) -> list[Search]:
    """The runs for the cases of a file. A short case has one in each of two spaces."""
    found = []
    for case in yaml.safe_load(path.read_text()):
        shape = {name: value for name, value in case.items() if name != "causal"}
        causal = bool(case["causal"])
        keys, head_dim = int(shape["seq_len_k"]), int(shape["head_dim"])
        if shape["seq_len_q"] == 1:
            spaces = [(_DECODE, LONG)]
        elif head_dim == 128:
            spaces = [(_WGMMA, HOPPER_128)]
        elif keys <= 512:
            spaces = [(_MMA, {} if shape["heads"] < 16 else WIDE_TILES), (_WGMMA, HOPPER_SMALL)]
        elif causal:
            spaces = [(_WGMMA, HOPPER_SMALL)]
        else:
            spaces = [(_WGMMA, HOPPER_ONE_WAVE)]
        name = f"{shape['heads']}x{shape['seq_len_q']}x{keys}x{head_dim}"
        found += [Search(f"{name}_{space}", space, shape, causal, start) for space, start in spaces]
    return found


def chosen(searches: tuple[Search, ...], names: Sequence[str] | None) -> tuple[Search, ...]:
    """The searches of these names, all without names; ends the program where a name is unknown."""
    known = [search.name for search in searches]
    if unknown := sorted(set(names or ()) - set(known)):
        sys.exit(f"--only: no run {', '.join(unknown)}; there are: {', '.join(known)}")
    return tuple(search for search in searches if not names or search.name in names)


def _tiny() -> tuple[Search, ...]:
    """Cases of the tiny models: encoders, ViT, and causal ones."""
    sizes = {"batch": 1, "heads": 2, "kv_heads": 2, "head_dim": 32}
    return tuple(
        Search(f"{length}_{causal}", "attention_cpu",
               {**sizes, "seq_len_q": length, "seq_len_k": length}, causal)
        for length, causal in ((64, False), (64, True), (65, False))
    )  # fmt: skip


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
