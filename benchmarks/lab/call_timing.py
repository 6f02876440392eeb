"""Times calls of an exported package, path by path: shared by the `export_*call.py` scripts.

`host_us` is the median time from call to return, over rounds of some calls in a row, with the
device idle before each round; `low` and `high` are its quartiles. The paths take turns, so that all
see the machine alike. `graph_us` is the device time of one call in a captured graph, on a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

_CALLS_IN_GRAPH = 20
_REPLAYS = 30
Paths = Mapping[str, Callable[[], object]]


def run(
    doc: str | None,
    measured: Callable[..., dict[str, Any]],
    *,
    calls: int,
    numbered: bool,
    modes: bool = False,
) -> None:
    """The script's command line. `numbered`: the case is chosen by its number; `modes`: the script
    has states of PyTorch to measure in."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n", 1)[0])
    parser.add_argument("package", type=Path)
    if numbered:
        parser.add_argument("--case", dest="number", type=int, default=0)
    if modes:
        parser.add_argument("--modes", action="store_true", help="in several states of PyTorch")
    parser.add_argument("--calls", type=int, default=calls)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("-o", "--output", type=Path)
    arguments = vars(parser.parse_args())
    folder, output = arguments.pop("package").resolve(), arguments.pop("output")
    sys.path.insert(0, str(folder.parent))
    module = importlib.import_module(folder.name)
    warnings.simplefilter("ignore")
    with torch.no_grad():
        result = measured(module, **arguments)
    show(result, output)


def show(result: dict[str, Any], output: Path | None) -> None:
    """Prints a table, and writes the result to a file, or prints it."""
    for words, ratio in result["ratios"].items():
        print(f"{ratio:9.2f} {words}", file=sys.stderr)
    for row in result["paths"]:
        graph = f"{row['graph_us']:9.2f}" if "graph_us" in row else ""
        figures = f"{row['host_us']:9.2f} {row['low']:9.2f} {row['high']:9.2f} {graph}"
        print(f"{row['path']:28} {figures}", file=sys.stderr)
    text = json.dumps(result, indent=1) + "\n"
    if output:
        output.write_text(text)
    else:
        print(text, end="")


def about(script: str, module: Any, calls: int, rounds: int) -> dict[str, Any]:
    """The circumstances of a measurement."""
    kernels = module._loaded._kernels
    device = device_of(module)
    name = torch.cuda.get_device_properties(device).name if device.type != "cpu" else ""
    return {
        "command": f"python benchmarks/{script}.py {shlex.join(sys.argv[1:])}".rstrip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": name or kernels.kernels.device_name,
        "cuda": torch.version.cuda,
        "driver": kernels.kernels.launcher.driver_version() if name else None,
        "calls": calls,
        "rounds": rounds,
    }


def device_of(module: Any) -> torch.device:
    return torch.device(module._loaded._kernels.kernels.device_type)


def times_of(
    paths: Paths,
    device: torch.device,
    *,
    calls: int,
    rounds: int,
    warm_up: int,
    in_graphs: Collection[str],
) -> list[dict[str, Any]]:
    """A row for each path; `in_graphs`: paths that a GPU also runs in a graph."""
    times: dict[str, list[float]] = {name: [] for name in paths}
    for call in paths.values():
        for _ in range(warm_up):
            call()
    for _ in range(rounds):
        for name, call in paths.items():
            times[name].append(_host_us(call, calls, device))
    rows = []
    for name, call in paths.items():
        low, median, high = statistics.quantiles(times[name], n=4)
        row: dict[str, Any] = {"path": name, "host_us": median, "low": low, "high": high}
        if device.type != "cpu" and name in in_graphs:
            row["graph_us"] = _graph_us(call)
        rows.append(row)
    return rows


def _host_us(call: Callable[[], object], calls: int, device: torch.device) -> float:
    if device.type != "cpu":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls * 1e6


def _graph_us(call: Callable[[], object]) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS_IN_GRAPH):
            call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(_REPLAYS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / _CALLS_IN_GRAPH)
    return statistics.median(times)
