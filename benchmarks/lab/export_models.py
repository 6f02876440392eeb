"""Times whole models of transformers with an exported package's attention, beside PyTorch's.

    python benchmarks/lab/export_models.py PACKAGE... [--models NAME...]
        [--ways graph eager compile]
        [--minutes M] [--rounds 30] [--tiny] [-o FILE]
    python benchmarks/lab/export_models.py --table FILE

PACKAGE is a package's module folder (DIR/NAME of `evotune export`), one for each dtype: float16 and
bfloat16. Its kernels must have been tuned for benchmarks/cases/models.yaml. The models have random
weights and batch 1. Each runs with four ways to compute attention, whose samples take turns:

- sdpa: attn_implementation="sdpa" of transformers, as it is.
- unmasked: F.scaled_dot_product_attention without a mask, with is_causal where the model is causal.
- none: no attention. The time above it is that of attention.
- package: attn_implementation=NAME.

`us` are median times of a call of the model: in a CUDA graph by events (graph), from call to the
end on the device (eager), the same of the model under torch.compile (compile). `errors` are the
largest ones of the output against the same model in a wider type; that of the package may be twice
that of `unmasked` and one rounding.

Each model and dtype has a process of its own. Cells that are in FILE already are not measured
again, so a campaign can be run in parts: `--minutes` ends a part. Exit code 1 when an output is
off, a call fails or a bar is missed.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from exported import calls, device_of, dtype_of, facts, opened
from model_bars import missed, table

PARENTS = "EVOTUNE_BENCHMARK_CHILD"
_NAMES = (
    *("bert-base", "bert-large", "gpt2", "vit-large", "whisper-large"),
    *("llama-2048", "llama-8192", "llama-decode"),
)
_WAYS = ("graph", "eager", "compile")
_WARM_UP, _LEAST_ROUNDS, _CELL_S = 3, 5, 12.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="*", type=Path, metavar="PACKAGE")
    parser.add_argument("--models", nargs="+", choices=_NAMES, default=_NAMES)
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=_WAYS)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then it ends")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tiny", action="store_true", help="models of two small layers")
    parser.add_argument("--compiler", default="inductor", help="torch.compile's backend")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of a record")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if os.environ.get(PARENTS):
        return child(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if options.table:
        record = json.loads(options.table.read_text())
    elif options.packages:
        record = campaign(options)
    else:
        parser.error("expected a package")
    print(table(record["cells"]))
    return 1 if missed(record["cells"]) else 0


def campaign(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what FILE lacks, and writes it there after each model."""
    ends = time.monotonic() + 60 * options.minutes
    packages = [opened(path) for path in options.packages]
    dtypes = [str(dtype_of(module)) for module in packages]
    if len(set(dtypes)) < len(dtypes):
        raise SystemExit("expected one package for each dtype; `evotune export` joins several runs")
    kept = options.output and options.output.exists()
    record = json.loads(options.output.read_text()) if kept else {"cells": []}
    record = {
        **facts(packages[0], "export_models.py"),
        "transformers": importlib.metadata.version("transformers"),
        "cells": record["cells"],
    }
    for name, path in itertools.product(options.models, options.packages):
        dtype = dtypes[options.packages.index(path)].removeprefix("torch.")
        done = {(c["model"], c["dtype"], c["way"]) for c in record["cells"] if "us" in c}
        ways = [way for way in options.ways if (name, dtype, way) not in done]
        left = ends - time.monotonic()
        if not ways or left <= 0:
            continue
        for cell in measured(options, path, name, ways, left):
            cell["dtype"] = dtype
            same = ("model", "dtype", "way")
            record["cells"] = [
                c for c in record["cells"] if any(c[key] != cell[key] for key in same)
            ] + [cell]
            print(json.dumps(cell), file=sys.stderr)
        if options.output:
            options.output.write_text(json.dumps(record, indent=1) + "\n")
    return record


def measured(
    options: argparse.Namespace, path: Path, name: str, ways: Sequence[str], seconds: float
) -> list[dict[str, Any]]:
    """The cells of one model and package, from a process of their own."""
    words = [str(path), "--models", name, "--ways", *ways, "--rounds", str(options.rounds)]
    words += ["--compiler", options.compiler, *(["--tiny"] if options.tiny else [])]
    output, ended = from_child([sys.executable, __file__, *words], seconds)
    cells = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
    lost = [way for way in ways if way not in {cell["way"] for cell in cells}]
    return cells + [{"model": name, "way": way, "error": ended} for way in lost]


def from_child(command: Sequence[str], seconds: float) -> tuple[bytes, str]:
    """The output of a process that is told to measure, and how it ended. It ends with this one."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env={**os.environ, PARENTS: "1"},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=None if seconds == float("inf") else seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the compiler's workers may keep the pipe open
        return process.communicate()[0], "the time ran out"
    except BaseException:  # the user or a signal ends this process
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return output, f"the process ended with {process.returncode}"


def child(options: argparse.Namespace) -> int:
    warnings.simplefilter("ignore")
    module, name = opened(options.packages[0]), options.models[0]
    with torch.no_grad():
        trial = Trial(module, name, options)
        for way in options.ways:
            try:
                found = {**trial.about(), **trial.cell(way)}
            except (RuntimeError, TypeError, ValueError, AttributeError) as error:
                first = str(error).splitlines() or [""]
                found = {"error": f"{type(error).__name__}: {first[0]}"}
            print(json.dumps({"model": name, "way": way, **found}), flush=True)
    return 0


class Trial:
    """One model, and a copy of it for each way to compute attention."""

    def __init__(self, module: ModuleType, name: str, options: argparse.Namespace) -> None:
        import transformers_models as models

        models.register()
        module.register_transformers()
        self._module, self._options = module, options
        self._device, self._dtype = device_of(module), dtype_of(module)
        model = models.made(name, options.tiny, self._device, self._dtype)
        self._call = models.MODELS[name].call(options.tiny, self._device, self._dtype)
        ways = {"sdpa": "sdpa", "unmasked": models.UNMASKED, "none": models.NONE}
        ways["package"] = module.__name__
        self._sides = {side: models.with_attention(model, way) for side, way in ways.items()}
        self._layers = int(model.config.num_hidden_layers)
        self._errors = self._compared()

    def _compared(self) -> dict[str, Any]:
        """The errors of outputs, and the number of calls that kernels served."""
        served = -calls(self._module)
        outputs = {side: self._call(self._sides[side]) for side in ("sdpa", "unmasked", "package")}
        served += calls(self._module)
        in_float = torch.float64 if self._dtype == torch.float32 else torch.float32
        # The sides share their parameters, so the reference must have its own.
        wide = copy.deepcopy(self._sides["unmasked"]).to(in_float)
        reference = self._call(wide).double()
        largest = float(reference.abs().max())
        errors = {
            side: float((out.double() - reference).abs().max()) for side, out in outputs.items()
        }
        allowed = 2 * errors["unmasked"] + torch.finfo(self._dtype).eps * largest
        agrees = errors["package"] <= allowed  # false for NaN
        return {"served": served, "errors": errors, "allowed": allowed, "agrees": agrees}

    def about(self) -> dict[str, Any]:
        return {"attention_calls": self._layers, **self._errors}

    def cell(self, way: str) -> dict[str, Any]:
        if way == "graph" and self._device.type != "cuda":
            return {"skipped": "needs a CUDA device"}
        samplers = {side: self._sampler(way, model) for side, model in self._sides.items()}
        times = in_turn(samplers, self._options.rounds)
        return {
            "rounds": min(map(len, times.values())),
            "us": {side: round(statistics.median(found), 2) for side, found in times.items()},
        }

    def _sampler(self, way: str, model: Any) -> Callable[[], float]:
        """A function that times one call, in us."""
        if way == "compile":
            model = torch.compile(model, backend=self._options.compiler)
        for _ in range(_WARM_UP):
            self._call(model)
        if way == "graph":
            return in_graph(lambda: self._call(model))

        def sample() -> float:
            return eager_us(lambda: self._call(model), self._device)

        return sample


def eager_us(call: Callable[[], object], device: torch.device) -> float:
    """The time from call to the end on the device."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    call()
    wait()
    return (time.perf_counter() - started) * 1e6


def in_graph(call: Callable[[], object]) -> Callable[[], float]:
    """A function that times a replay, in us, of the call in a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    sample()
    return sample


def in_turn(samplers: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Samples of all sides, in an order that turns, for some seconds at most."""
    times: dict[str, list[float]] = {side: [] for side in samplers}
    names, started = list(samplers), time.monotonic()
    for number in range(rounds):
        if number >= _LEAST_ROUNDS and time.monotonic() - started > _CELL_S:
            break
        for side in names[number % len(names) :] + names[: number % len(names)]:
            times[side].append(samplers[side]())
    return times


if __name__ == "__main__":
    sys.exit(main())
