"""Measures how long `evotune gate` takes for CPU kernels of some microseconds, in fresh processes.

    python benchmarks/gate_seconds.py [--repeats 3] [-o FILE]

Each kernel is judged by a command of its own, as an agent would call it: imports, compiling, checks
and all processes that time it count. A row has the wall time, the CPU time of all its processes,
and how many cores other processes kept busy meanwhile, which the wall time depends on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROBLEM = """
from evotune.problems import UserProblem


class RowSum(UserProblem):
    sizes = ("rows", "columns")
    shapes = [{"rows": 64, "columns": 1000}]

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows,)}

    def operations(self, rows, columns):
        return rows * columns

    def compute(self, x):
        return {"out": x.sum(dim=-1)}


class Softmax(RowSum):
    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def compute(self, x):
        return {"out": x.softmax(dim=-1)}
"""
CPP = """
extern "C" void row_sum(const float* x, float* out, int rows, int columns) {
  for (int row = 0; row < rows; ++row) {
    const float* values = x + long(row) * columns;
    float parts[16] = {}, sum = 0;
    int column = 0;
    for (; column + 16 <= columns; column += 16)
      for (int i = 0; i < 16; ++i) parts[i] += values[column + i];
    for (; column < columns; ++column) sum += values[column];
    for (int i = 0; i < 16; ++i) sum += parts[i];
    out[row] = sum;
  }
}
"""
FILES = {
    "problem.py": PROBLEM,
    "row_sum.cpp": CPP,
    "wrong.cpp": CPP.replace("column < columns; ++column", "column + 1 < columns; ++column"),
    "row_sum.py": "def row_sum(x):\n    return x.sum(dim=-1)\n",
    "softmax.py": "import torch\n\n\ndef softmax(x, out):\n    torch.softmax(x, -1, out=out)\n",
}
SPACES = ROOT / "search_spaces"
KERNELS = ROOT / "kernels"
ROWS = "rows=64,columns=1000"


@dataclass(frozen=True)
class Item:
    """A kernel and its task, as words of the command line."""

    name: str
    words: tuple[str, ...]


def _shipped(name: str, kernel: str, shape: str) -> Item:
    task = str(SPACES / f"{name}.yaml")
    return Item(name, (str(KERNELS / kernel), "--task", task, "--shape", shape))


ITEMS = (
    Item("row sum in C++", ("row_sum.cpp", "--task", "problem.py:RowSum")),
    Item("wrong row sum in C++", ("wrong.cpp", "--task", "problem.py:RowSum")),
    _shipped("softmax_cpu", "softmax/softmax_cpu.cpp", ROWS),
    _shipped("rms_norm_cpu", "rms_norm/rms_norm_cpu.cpp", ROWS),
    _shipped("matmul_cpu", "matmul/matmul_cpu.cpp", "m=64,n=64,k=64"),
    Item("row sum in PyTorch", ("row_sum.py", "--task", "problem.py:RowSum")),
    Item("softmax in PyTorch", ("softmax.py", "--task", "problem.py:Softmax")),
)


def judged(item: Item, folder: Path) -> dict[str, Any]:
    """One row: the verdict of the item, in an empty cache, and what it took."""
    command = [sys.executable, "-m", "evotune", "gate", *item.words, "--trust", "-q", "--json"]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "EVOTUNE_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
        busy_s, before, began_s = _busy_s(), os.times(), time.monotonic()
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        wall_s = time.monotonic() - began_s
    after = os.times()
    own_s = after.children_user + after.children_system
    own_s -= before.children_user + before.children_system
    found = json.loads(done.stdout) if done.stdout else {"verdict": done.stderr}
    timed = found.get("measurements") or [{}]
    return {
        "kernel": item.name,
        "verdict": found["verdict"],
        "exit_code": done.returncode,
        "time_us": found.get("time_us"),
        "wall_s": round(wall_s, 1),
        "cpu_s": round(own_s, 1),
        "others_busy_cores": round(max(0.0, _busy_s() - busy_s - own_s) / wall_s, 2),
        "processes": len(timed[0].get("processes", ())),
    }


def _busy_s() -> float:
    """CPU time of all processes of the machine, in s."""
    line = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system = (int(each) for each in line[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in FILES.items():
            (folder / file).write_text(text)
        for _ in range(given.repeats):
            for item in ITEMS:
                rows.append(judged(item, folder))
                print(json.dumps(rows[-1]), flush=True)
    passed = [row for row in rows if row["verdict"] == "passed"]
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "benchmarks/gate_seconds.py", *sys.argv[1:]]),
        "cores": len(os.sched_getaffinity(0)),
        "device": _device(),
        "median_wall_s_of_passed": round(statistics.median(row["wall_s"] for row in passed), 1),
        "median_cpu_s_of_passed": round(statistics.median(row["cpu_s"] for row in passed), 1),
        "rows": rows,
    }
    text = json.dumps(found, indent=2) + "\n"
    print(text if given.output is None else f"written to {given.output}")
    if given.output is not None:
        given.output.write_text(text)


def _device() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )


if __name__ == "__main__":
    main()
