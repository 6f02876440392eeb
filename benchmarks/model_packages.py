"""Tunes attention for the models of export_models.py, and exports a package for each dtype.

    python benchmarks/model_packages.py FOLDER [--dtypes float16 bfloat16] [--trials 60]
        [--devices cuda:0 ...] [--tiny]

Each case of benchmarks/cases/models.yaml has a run of its own, and so a champion of its own, in the
spaces that suit it: attention-wgmma for long sequences, attention-mma for short ones,
attention-mma-decode for one query. A run begins with a configuration that was good at a case like
its own (attention_cuda.py), or with the best ones of the other dtype's run. A GPU measures one run
at a time; several devices share the runs. A run of FOLDER that is finished is kept, so the same
command goes on where it was stopped.

The packages are FOLDER/DTYPE/model_attention_DTYPE. Prints one JSON record: for each run its
seconds and its best speedup, and the command that measures the models. On an H200 a run of 60
trials takes about as long as those of benchmarks/results/attention_h200.json (12 to 30 s, of 80 to
120 trials). `--tiny` makes a package for the tiny models on the CPU.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from attention_cuda import HOPPER_128, HOPPER_ONE_WAVE, HOPPER_SMALL, LONG, WIDE_TILES
from tuning import EVOTUNE, ROOT, champion, derive, shipped, told

_CASES = ROOT / "benchmarks" / "cases" / "models.yaml"
_MMA, _WGMMA, _DECODE = "attention_mma", "attention_wgmma", "attention_mma_decode"
Shape = dict[str, Any]


@dataclass(frozen=True)
class Search:
    """A run for one case. `start` replaces values of the space's default configuration."""

    name: str
    space: str
    shape: Shape
    causal: bool
    start: dict[str, Any] = field(default_factory=dict)

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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16"])
    parser.add_argument("--trials", type=int, default=60, help="of each run")
    parser.add_argument("--devices", nargs="+", default=["cuda:0"])
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        options.dtypes, options.devices = ["float32"], ["cpu"]
    record = made(options)
    print(json.dumps(record, indent=1))
    return 0 if all(record["packages"].values()) else 1


def made(options: argparse.Namespace) -> dict[str, Any]:
    started = time.perf_counter()
    devices: queue.Queue[str] = queue.Queue()
    for device in options.devices:
        devices.put(device)

    def run(search: Search, dtype: str) -> dict[str, Any]:
        device = devices.get()
        try:
            return searched(options, search, dtype, device)
        finally:
            devices.put(device)

    runs: list[dict[str, Any]] = []
    packages: dict[str, str] = {}
    searches = _tiny() if options.tiny else tuple(searches_of(_CASES))
    for dtype in options.dtypes:
        with ThreadPoolExecutor(len(options.devices)) as pool:
            found = list(pool.map(lambda search, dtype=dtype: run(search, dtype), searches))
        runs += found
        packages[dtype] = exported(options.folder, dtype, [each["run"] for each in found])
    paths = [path for path in packages.values() if path]
    measure = ["python", "benchmarks/export_models.py", *paths]
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "runs": runs,
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


def _tiny() -> tuple[Search, ...]:
    """Cases of the tiny models: encoders, ViT, and causal ones."""
    sizes = {"batch": 1, "heads": 2, "kv_heads": 2, "head_dim": 32}
    return tuple(
        Search(f"{length}_{causal}", "attention_cpu",
               {**sizes, "seq_len_q": length, "seq_len_k": length}, causal)
        for length, causal in ((64, False), (64, True), (65, False))
    )  # fmt: skip


def searched(
    options: argparse.Namespace, search: Search, dtype: str, device: str
) -> dict[str, Any]:
    """The facts of the search's run, which is made unless an earlier command has made it."""
    folder = options.folder / "runs" / f"{search.name}_{dtype}"
    kept = folder / "facts.json"
    if kept.is_file():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
    folder.mkdir(parents=True)
    default = {**shipped(search.space)["default"], **search.start}
    changes = {"name": f"{search.name}-{dtype}", "problem": search.problem(dtype)}
    path = derive(search.space, {**changes, "default": default}, folder / "space.yaml")
    words = ["--trials", str(options.trials), "--champions", "1", "--device", device, "-q"]
    others = sorted((options.folder / "runs").glob(f"{search.name}_*/facts.json"))
    if others:
        words += ["--warm-start", json.loads(others[0].read_text())["run"]]
    started = time.perf_counter()
    command = [*EVOTUNE, "run", str(path), *words, "--runs-dir", str(folder)]
    status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    found = {"case": search.name, "space": search.space, "dtype": dtype, "status": status}
    found |= {"seconds": round(time.perf_counter() - started, 1), "run": "", "speedup_low": None}
    if status == 0:
        report = told("report", folder)
        found["run"] = str(folder / report["run"]["id"])
        found["speedup_low"] = champion(report)["speedup_low"]
        kept.write_text(json.dumps(found))
    print(json.dumps(found), file=sys.stderr)
    return found


def exported(folder: Path, dtype: str, runs: list[str]) -> str:
    """The module's folder of the package of these runs; "" where it cannot be made."""
    name = f"model_attention_{dtype}"
    target = folder / dtype
    shutil.rmtree(target, ignore_errors=True)
    confirmed = [run for run in runs if run]
    if not confirmed:
        return ""
    command = [*EVOTUNE, "export", *confirmed, "-o", str(target), "--name", name]
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    return "" if done.returncode else str(target / name)


if __name__ == "__main__":
    sys.exit(main())
