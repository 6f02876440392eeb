"""Times models with windows, sinks, padded batches and pages with exported packages' attention.

    python benchmarks/lab/feature_models.py PACKAGE... [--items NAME...]
        [--ways graph eager compile] [--minutes M] [--rounds 30] [--tiny] [-o FILE]
    python benchmarks/lab/feature_models.py --table FILE

PACKAGE is a package's module folder (DIR/NAME of `evotune export`): of attention, of packed or of
paged sequences. feature_packages.py makes all three. An item (feature_items.py) is measured with
each package of its problem:

- mistral-window: layers of Mistral 7B, a prompt of 8,192 tokens, a window of 4,096.
- gpt-oss-sinks: layers of GPT-OSS with sinks, every second one with a window of 128.
- bert-padded: bert-base, 32 sequences of 512, 256, 170, … 16 tokens, padded to 512.
- decode-paged: 16 steps of 8 sequences of 4,080 keys in pages; a step writes a key of each and
  attends to all.

Sides take turns: `package`; `sdpa`, which is transformers' own, or SDPA on gathered keys;
`flex_attention` of transformers for models on a GPU; `eager` where a model has no `sdpa`; `none`,
all but attention. A side that fails is told in `failed`: transformers' eager attention makes its
mask in a way that no graph captures. `us` are median times of a call: in a CUDA graph (graph), from
call to the end on the device (eager), or the same of the model, or of all steps, under
torch.compile (compile). There a side is one graph if it can be, else several (`graphs`). `errors`
are the largest ones of the output, with `compile` of the package's compiled call, against eager
attention in a wider type; the package's may be twice that of `limit`, which is eager attention in
the same type or SDPA, and one rounding. `served` is the number of calls that kernels served in a
call that was timed, of `attention_calls`: while torch.compile traces, they serve no padded batches
in models.

Each item and package has a process of its own. Cells that are in FILE already are not measured
again, so a campaign can be run in parts: `--minutes` ends a part. Exit code 1 when an output is off
or a call fails.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from exported import calls, device_of, dtype_of, facts, opened

PARENTS = "EVOTUNE_BENCHMARK_CHILD"
_ITEMS = {
    "mistral-window": "attention",
    "gpt-oss-sinks": "attention",
    "bert-padded": "attention_varlen",
    "decode-paged": "attention_paged",
}
_WAYS = ("graph", "eager", "compile")
_WARM_UP, _LEAST_ROUNDS, _CELL_S = 3, 5, 12.0
_RECOMPILATIONS = 64
"""The sides share their code, and PyTorch keeps 8 compiled versions of a function at most."""
_OWN = frozenset({"package", "none"})
_FAULTS = (RuntimeError, TypeError, ValueError, AttributeError)
Cell = dict[str, Any]
Made = TypeVar("Made")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="*", type=Path, metavar="PACKAGE")
    parser.add_argument("--items", nargs="+", choices=_ITEMS, default=list(_ITEMS))
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=list(_WAYS))
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
    return 1 if any(map(fault, record["cells"])) else 0


def campaign(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what FILE lacks, and writes it there after each item."""
    ends = time.monotonic() + 60 * options.minutes
    modules = {path: opened(path) for path in options.packages}
    kept = options.output and options.output.exists()
    record: dict[str, Any] = {
        **facts(next(iter(modules.values())), "feature_models.py"),
        "transformers": importlib.metadata.version("transformers"),
        "cells": json.loads(options.output.read_text())["cells"] if kept else [],
    }
    del record["package"]
    for item, path in pairs(options.items, modules):
        module = modules[path]
        about = {"item": item, "package": module.__name__, "dtype": str(dtype_of(module))[6:]}
        ways = left(record["cells"], about, options.ways)
        seconds = ends - time.monotonic()
        if not ways or seconds <= 0:
            continue
        for cell in measured(options, path, item, ways, seconds):
            record["cells"] = [each for each in record["cells"] if not _same(each, about | cell)]
            record["cells"].append({**about, **cell})
            print(json.dumps(record["cells"][-1]), file=sys.stderr)
        if options.output:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(record, indent=1) + "\n")
    return record


def pairs(items: Sequence[str], modules: dict[Path, ModuleType]) -> Iterator[tuple[str, Path]]:
    """Items with the packages of their problems; SystemExit, one line, where one has none."""
    for item in items:
        found = [path for path, module in modules.items() if _problem_of(path) == _ITEMS[item]]
        if not found:
            raise SystemExit(f"{item} needs a package of {_ITEMS[item]}: leave it out with --items")
        yield from ((item, path) for path in found)


def _problem_of(path: Path) -> str:
    described = json.loads((path / "dispatch.json").read_text())
    return str(described["problem"]["name"])


def left(cells: Sequence[Cell], about: Cell, ways: Sequence[str]) -> list[str]:
    """The ways that have no times yet. One that failed is measured again."""
    done = [each for each in cells if "us" in each or "skipped" in each]
    return [way for way in ways if not any(_same(each, {**about, "way": way}) for each in done)]


def _same(cell: Cell, other: Cell) -> bool:
    return all(cell[name] == other[name] for name in ("item", "package", "dtype", "way"))


def measured(
    options: argparse.Namespace, path: Path, item: str, ways: Sequence[str], seconds: float
) -> list[Cell]:
    """The cells of one item and package, from a process of their own."""
    words = [str(path), "--items", item, "--ways", *ways, "--rounds", str(options.rounds)]
    words += ["--compiler", options.compiler, *(["--tiny"] if options.tiny else [])]
    output, ended = from_child([sys.executable, __file__, *words], seconds)
    cells = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
    lost = [way for way in ways if way not in {cell["way"] for cell in cells}]
    return cells + [{"way": way, "error": ended} for way in lost]


def child(options: argparse.Namespace) -> int:
    warnings.simplefilter("ignore")
    module = opened(options.packages[0])
    with torch.no_grad():
        trial = Trial(module, options.items[0], options.tiny, options.rounds, options.compiler)
        for way in options.ways:
            try:
                found = {**trial.about, **trial.cell(way)}
            except _FAULTS as error:
                found = {"error": _first_line(error)}
            print(json.dumps({"way": way, **found}), flush=True)
    return 0


def made(
    make: Callable[[str], Made], sides: Iterable[str], needed: Set[str]
) -> tuple[dict[str, Made], dict[str, str]]:
    """One for each side, and why others have none. A failed capture may disturb later ones, so the
    sides that are needed come first."""
    found, failed = {}, {}
    for side in sorted(sides, key=lambda side: side not in needed):
        try:
            found[side] = make(side)
        except _FAULTS as error:
            if side in needed:
                raise
            failed[side] = _first_line(error)
    return found, failed


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


class Trial:
    """An item with a package, and its other ways to compute attention."""

    def __init__(
        self, module: ModuleType, item: str, tiny: bool, rounds: int, compiler: str = "inductor"
    ) -> None:
        from feature_items import ITEMS

        self._module, self._rounds, self._compiler = module, rounds, compiler
        self._device = device_of(module)
        self._built = ITEMS[item].build(module, tiny)
        self.about = self._compared()

    def _compared(self) -> Cell:
        """The errors of the outputs."""
        built = self._built
        compared = [side for side in built.sides if side != "none"]
        needed = {*_OWN, built.limit}
        outputs, self._failed = made(lambda side: built.sides[side](), compared, needed)
        self._reference = built.reference().double()
        largest = float(self._reference.abs().max())
        errors = {side: self._error(out) for side, out in outputs.items()}
        eps = torch.finfo(outputs["package"].dtype).eps
        allowed = 2 * errors[built.limit] + eps * largest
        return {
            "attention_calls": built.attention_calls,
            "limit": built.limit,
            "errors": errors,
            "allowed": allowed,
            "agrees": errors["package"] <= allowed,  # false for NaN
        }

    def _error(self, output: torch.Tensor) -> float:
        return float((output.double() - self._reference).abs().max())

    def cell(self, way: str) -> Cell:
        if way == "graph" and self._device.type != "cuda":
            return {"skipped": "needs a CUDA device"}
        served = 0

        def counted(call: Callable[[], torch.Tensor]) -> torch.Tensor:
            nonlocal served
            before = calls(self._module)
            output = call()
            served = calls(self._module) - before
            return output

        sides: dict[str, Callable[[], torch.Tensor]] = {
            side: call for side, call in self._built.sides.items() if side not in self._failed
        }
        if "sdpa" in sides:
            sides.pop("eager", None)  # for the limit alone: it may need tens of GB in a graph
        failed: dict[str, str] = {}
        found: Cell = {}
        if way == "compile":
            compiled, failed = made(self._compiled, sides, _OWN)
            sides = {side: call for side, (call, _) in compiled.items()}
            found["graphs"] = {side: graphs for side, (_, graphs) in compiled.items()}
            error = self._error(counted(sides["package"]))
            found["errors"] = {**self.about["errors"], "package": error}
            found["agrees"] = error <= self.about["allowed"]  # false for NaN
        elif way == "graph":
            package = sides["package"]
            sides["package"] = lambda: counted(package)  # the last call is the captured one
        else:
            counted(sides["package"])
        samplers, others = made(lambda side: self._sampler(way, sides[side]), sides, _OWN)
        times = in_turn(samplers, self._rounds)
        return {
            **found,
            "failed": self._failed | failed | others,
            "served": served,
            "rounds": min(map(len, times.values())),
            "us": {side: round(statistics.median(each), 2) for side, each in times.items()},
        }

    def _compiled(self, side: str) -> tuple[Callable[[], torch.Tensor], int]:
        """A call of the side that is compiled already, and how many graphs it became."""
        torch._dynamo.config.recompile_limit = _RECOMPILATIONS
        backend = torch._dynamo.lookup_backend(self._compiler)
        for whole in (True, False):
            graphs = 0

            def compiled(graph: Any, inputs: Any) -> Any:
                """A backend of the side's own. PyTorch keeps compiled code by the model's code and
                the backend, and a side that is one graph would run in the parts of another's."""
                nonlocal graphs
                graphs += 1
                return backend(graph, inputs)

            compiler = functools.partial(torch.compile, backend=compiled, fullgraph=whole)
            call = self._built.compiled(side, compiler)
            try:
                call()
            except _FAULTS:
                if not whole:
                    raise
            else:
                break
        return call, graphs

    def _sampler(self, way: str, call: Callable[[], object]) -> Callable[[], float]:
        """A function that times one call, in us."""
        for _ in range(_WARM_UP):
            call()
        return in_graph(call) if way == "graph" else lambda: eager_us(call, self._device)


def fault(cell: Cell) -> str:
    """Why the cell is no good; "" where it is."""
    return str(cell.get("error", "")) or ("" if cell.get("agrees", True) else "the output is off")


def table(cells: Sequence[Cell]) -> str:
    """A line for each cell: times in us, then the speedup of the whole and that of attention, the
    time above `none`, against the fastest other side."""
    lines = [
        f"{'item':15} {'dtype':9} {'way':7} {'against':14} {'us':>10} {'none':>10} {'package':>10}"
        f" {'whole':>7} {'attention':>9}  served"
    ]
    for cell in sorted(cells, key=lambda c: (c["item"], c["dtype"], c["way"], c["package"])):
        words = f"{cell['item']:15} {cell['dtype']:9} {cell['way']:7}"
        if "us" not in cell:
            lines.append(f"{words} {cell.get('skipped') or fault(cell)}")
            continue
        us = cell["us"]
        others = [side for side in us if side not in _OWN]
        if not others:
            lines.append(f"{words} {'nothing':14} {'':10} {us['none']:10.1f} {us['package']:10.1f}")
            continue
        against = min(others, key=us.__getitem__)
        ours = us["package"] - us["none"]
        attention = (us[against] - us["none"]) / ours if ours > 0 else float("inf")
        lines.append(
            f"{words} {against:14} {us[against]:10.1f} {us['none']:10.1f} {us['package']:10.1f}"
            f" {us[against] / us['package']:6.2f}x {attention:8.2f}x"
            f"  {cell['served']}/{cell['attention_calls']} {fault(cell)}".rstrip()
        )
    return "\n".join(lines)


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
