"""Calls an exported attention package from several threads and streams at once, for minutes.

    python benchmarks/lab/export_streams.py PACKAGE [--minutes 10] [--threads 4] [--streams 2]
        [--seed 0] [-o FILE]

PACKAGE is the package's module folder (DIR/NAME of `evotune export`). The cases are the timed ones
that the package serves, and random ones near them, contiguous and as views. One thread computes the
result of each first, twice. Then each thread makes bursts of calls on one of the streams, which all
threads share: by NAME.attention, by its operator, by F.scaled_dot_product_attention while the
package is active, and by replaying graphs of its own. Each result is compared bit for bit with the
first one. On a CPU there are threads only.

Prints one JSON record with counts; exit code 1 for a wrong bit, an exception, or a call that no
kernel served.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from exported import SIZES, calls, device_of, dtype_of, facts, opened, regions, sizes_in

_MOST_CASES, _MOST_SCORES = 24, 1 << 28
_BURST = 8
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class Case:
    """A served case.

    - tensors, options: the arguments of the call.
    - expected: the bits of the result.
    """

    words: str
    tensors: tuple[torch.Tensor, ...]
    options: dict[str, Any]
    expected: torch.Tensor


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    module = opened(options.package)
    with torch.no_grad():
        record = campaign(module, options)
    text = json.dumps(record, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 1 if record["wrong"] or record["errors"] or record["not_served"] else 0


def campaign(module: ModuleType, options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore")  # of misses, while cases are drawn
    cases = served_cases(module, random.Random(options.seed))
    if not cases:
        raise SystemExit("the package serves no case on this device")
    on_gpu = device_of(module).type == "cuda"
    streams = [torch.cuda.Stream() for _ in range(options.streams)] if on_gpu else [None]
    workers = [
        Worker(module, cases, streams, random.Random(f"{options.seed} {number}"))
        for number in range(options.threads)
    ]
    started, counted = time.monotonic(), calls(module)
    ends = started + 60 * options.minutes
    with module.active():
        threads = [threading.Thread(target=worker.run, args=(ends,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    made: Counter[str] = sum((worker.made for worker in workers), Counter())
    called = sum(count for path, count in made.items() if path != "graph")
    return {
        **facts(module, "export_streams.py"),
        "threads": options.threads,
        "streams": len(streams) if on_gpu else 0,
        "seconds": round(time.monotonic() - started, 1),
        "cases": [case.words for case in cases],
        "calls": dict(sorted(made.items())),
        "not_served": called - (calls(module) - counted),
        "wrong": dict(sorted(sum((worker.wrong for worker in workers), Counter()).items())),
        "errors": [error for worker in workers for error in worker.errors],
    }


def served_cases(module: ModuleType, rng: random.Random) -> list[Case]:
    """The timed cases, then random ones near them, as many as are served."""
    found: list[Case] = []
    timed = [region for region in regions(module) if not region["near"]]
    near = [region for region in regions(module) if region["near"]] or timed
    drawn = [(region, False) for region in timed]
    drawn += [(rng.choice(near), True) for _ in range(4 * _MOST_CASES)]
    for region, is_random in drawn[: 4 * _MOST_CASES]:
        sizes = sizes_in(region, rng)
        scores = sizes["batch"] * sizes["heads"] * sizes["seq_len_q"] * sizes["seq_len_k"]
        if len(found) < _MOST_CASES and scores <= _MOST_SCORES:
            case = made(module, region, sizes, is_random and rng.random() < 0.5)
            found += [case] if case else []
    return found


def made(
    module: ModuleType, region: dict[str, Any], sizes: dict[str, int], across: bool
) -> Case | None:
    """The case with its result; None where no kernel serves it. `across` makes views of (batch,
    length, heads, head_dim) memory."""
    device = device_of(module)
    generator = torch.Generator(device).manual_seed(sum(sizes.values()))
    places = (("heads", "seq_len_q"), ("kv_heads", "seq_len_k"), ("kv_heads", "seq_len_k"))

    def tensor(heads: int, length: int) -> torch.Tensor:
        lengths = (length, heads) if across else (heads, length)
        shape = (sizes["batch"], *lengths, sizes["head_dim"])
        values = torch.randn(shape, generator=generator, device=device).to(dtype_of(module))
        return values.transpose(1, 2) if across else values

    tensors = tuple(tensor(sizes[heads], sizes[length]) for heads, length in places)
    options = {
        "is_causal": bool(region["fixed"].get("causal", False)),
        "enable_gqa": sizes["heads"] != sizes["kv_heads"],
    }
    scales = region["ranges"].get("softmax_scale", (0.0, 1.0))
    if scales[0] == scales[1]:
        options["scale"] = float(scales[0])
    before = calls(module)
    first, second = (module.attention(*tensors, **options) for _ in range(2))
    if calls(module) < before + 2:
        return None
    if not torch.equal(bits(first), bits(second)):
        raise SystemExit(f"{sizes} {options}: two calls of one thread give other bits")
    kind = "causal" if options["is_causal"] else "full"
    words = f"{tuple(sizes[name] for name in SIZES)} {kind}{' views' if across else ''}"
    return Case(words, tensors, options, first.clone())


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(_BITS[values.element_size()])


class Worker:
    """One thread's calls.

    - made, wrong: path -> number of calls, of results with wrong bits.
    """

    def __init__(
        self, module: ModuleType, cases: list[Case], streams: list[Any], rng: random.Random
    ) -> None:
        self._cases, self._streams, self._rng = cases, streams, rng
        operator = getattr(torch.ops, module._loaded._operator.namespace).attention
        self._paths: dict[str, Callable[..., torch.Tensor]] = {
            "attention": module.attention,
            "operator": operator,
            "hook": _hooked,
        }
        self._graphs = [_captured(module, case) for case in cases] if streams[0] else []
        self.made: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.errors: list[str] = []

    def run(self, ends: float) -> None:
        """Bursts of calls until that time of the monotonic clock."""
        try:
            with torch.no_grad():
                while time.monotonic() < ends:
                    self._burst()
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            self.errors.append(f"{type(error).__name__}: {error}"[:300])

    def _burst(self) -> None:
        """Calls, then comparisons: on a GPU the calls of all threads overlap."""
        stream = self._rng.choice(self._streams)
        results = []
        with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
            for _ in range(_BURST if stream else 1):
                number = self._rng.randrange(len(self._cases))
                case = self._cases[number]
                path = self._rng.choice([*self._paths, *(["graph"] if self._graphs else [])])
                if path == "graph":
                    graph, static = self._graphs[number]
                    static.zero_()
                    graph.replay()
                    out = static.clone()
                else:
                    out = self._paths[path](*case.tensors, **case.options)
                results.append((path, out, case))
            differ = [(bits(out) != bits(case.expected)).any() for _, out, case in results]
            found = torch.stack(differ).tolist()
        for (path, _, _), wrong in zip(results, found, strict=True):
            self.made[path] += 1
            self.wrong[path] += int(wrong)
        self.wrong += Counter()  # drops zeros


def _hooked(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    """The function that stands in the module now."""
    return F.scaled_dot_product_attention(*tensors, **options)


def _captured(module: ModuleType, case: Case) -> tuple[Any, torch.Tensor]:
    """A graph of one call, and its output."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module.attention(*case.tensors, **case.options)
    return graph, out


if __name__ == "__main__":
    sys.exit(main())
