"""evotune in a working folder whose Python files have the names of modules that it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweeps import swept

from .conftest import ROOT

# pip writes this script for the entry point; `python -m evotune` is the other way to start.
SCRIPT = """
import sys
from evotune.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""
EVERY_MODULE = """
import json, pkgutil, sys
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} - {"__main__"})))
import distributed, pandas, torch
import evotune
for found in pkgutil.walk_packages(evotune.__path__, "evotune."):
    if "templates" not in found.name and not found.name.endswith("__main__"):
        __import__(found.name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} - {"__main__"})))
"""
SPACE = """
name: here
root: .
problem:
  name: attention
  shapes: [{batch: 1, heads: 1, seq_len: 32, head_dim: 16}]
kernels:
  scalar:
    source: scalar.cpp
    entry: attention_forward
    define: [head_dim, causal]
    arguments:
      [q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k,
       q_stride_batch, q_stride_head, q_stride_row, k_stride_batch, k_stride_head, k_stride_row,
       v_stride_batch, v_stride_head, v_stride_row, out_stride_batch, out_stride_head,
       out_stride_row]
parameters: {BLOCK_N: [16, 32], UNROLL: [8], SCHEDULE: {choices: [static]}, CHUNK: [1]}
budget: {trials: 2}
"""
RECORDING = ROOT / "tests" / "data" / "synthetic_recording.json.gz"
KERNEL = ROOT / "kernels" / "attention" / "1_scalar.cpp"


class Downloads:
    """A folder with a namesake of every module that evotune imports: each leaves a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marks = folder / "downloads", folder / "marks"
        self.script = folder / "bin" / "evotune"
        for made in (self.folder, self.marks, self.script.parent):
            made.mkdir()
        self.script.write_text(SCRIPT)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "EVOTUNE_CACHE_DIR": str(folder / "cache"),
            "EVOTUNE_STATE_DIR": str(folder / "state"),
        }
        known = subprocess.run(
            [sys.executable, "-P", "-c", EVERY_MODULE],
            env=self.environment, cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
        first, every = map(json.loads, known.stdout.splitlines()[:2])
        self.before_evotune = set(first)
        names = {*every, *sys.stdlib_module_names, "sitecustomize", "usercustomize"}
        for name in names:
            mark = self.marks / name
            text = f"open({str(mark)!r}, 'w').close()\nraise ImportError('{name} is a trap')\n"
            (self.folder / f"{name}.py").write_text(text)
        (self.folder / "space.yaml").write_text(SPACE)
        (self.folder / "scalar.cpp").write_bytes(KERNEL.read_bytes())
        (self.folder / "parts").mkdir()
        for header in (KERNEL.parent / "parts").glob("*.h"):
            (self.folder / "parts" / header.name).write_bytes(header.read_bytes())

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert [mark.name for mark in self.marks.iterdir()] == [], (command, done.stderr)
        return done


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Downloads:
    made = Downloads(tmp_path_factory.mktemp("foreign"))
    _begin(made, f"run {RECORDING} --trials 20")
    return made


@pytest.fixture(scope="module")
def measured(downloads: Downloads) -> str:
    """The name of a run of real kernels with a champion; it takes long to make."""
    before = set(_runs(downloads))
    _begin(downloads, "run space.yaml --trials 2 --champions 1")
    (run,) = set(_runs(downloads)) - before
    return run


def _begin(downloads: Downloads, words: str) -> None:
    done = downloads.run(downloads.script, *words.split())
    assert done.returncode == 0, done.stderr


def _runs(downloads: Downloads) -> list[str]:
    return sorted(path.name for path in (downloads.folder / "runs").iterdir())


SOON = ("check space.yaml", "status", "report RUN --format html -o out")


@pytest.mark.parametrize(
    "words",
    swept(
        [
            "--version",
            "doctor",
            "check space.yaml",
            "compile attention-cpu --sample 1",
            "resume RUN --trials 30",
            "status",
            "status RUN",
            "top RUN",
            *(f"report RUN --format {style} -o out" for style in ("html", "md", "parquet", "t4")),
            f"replay {RECORDING} --max-evals 5",
            "init mine",
            "schema",
            "completion bash",
        ],
        lambda words: words in SOON,
    ),
)
def test_no_file_of_the_working_folder_is_taken_for_a_module(
    downloads: Downloads, words: str
) -> None:
    _begin(downloads, words.replace("RUN", _runs(downloads)[0]))


@pytest.mark.soak
@pytest.mark.parametrize(
    "words",
    [
        *(f"report RUN --format {style} -o out" for style in ("csv", "json", "jsonl")),
        "resume RUN --trials 3",
        "verify RUN",
        "ablate RUN",
        "compare RUN:0 RUN:1 --remeasure",
        "run space.yaml --trials 1 --champions 1 --warm-start RUN",
        "run space.yaml --trials 1 --champions 1 --cluster local:1",
    ],
)
def test_nor_by_a_command_that_compiles_and_measures(
    downloads: Downloads, measured: str, words: str
) -> None:
    _begin(downloads, words.replace("RUN", measured))


def test_nor_does_a_process_that_works_on_a_long_report(downloads: Downloads) -> None:
    program = downloads.script.with_name("long_report.py")
    program.write_text(
        "import operator\nfrom evotune.report.whole import mapped\n"
        "if __name__ == '__main__':\n    print(list(mapped(operator.neg, range(3), 2)))\n"
    )
    assert downloads.run(program).stdout == "[0, -1, -2]\n"


def test_nor_does_evotune_started_as_a_module(downloads: Downloads) -> None:
    """Python finds some modules in the working folder before any code of evotune runs, among them
    evotune itself: files with these names are moved aside."""
    moved = [
        (path, path.with_suffix(".moved"))
        for name in {*downloads.before_evotune, "evotune", "runpy", "importlib"}
        if (path := downloads.folder / f"{name}.py").exists()
    ]
    for path, aside in moved:
        path.rename(aside)
    try:
        done = downloads.run("-m", "evotune", "compile", "space.yaml", "--sample", 1)
    finally:
        for path, aside in moved:
            aside.rename(path)
    assert done.returncode == 0, done.stderr
