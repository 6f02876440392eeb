"""Times one call of an exported package whose kernels take tensors by name, path by path.

    python benchmarks/lab/export_named_call.py PACKAGE [--case N] [--calls 50] [--rounds 60]
        [-o FILE]

PACKAGE is the package's module folder (DIR/NAME of `evotune export`): of packed or paged attention,
or of a user's problem. The case is the N-th that was timed and is served. All paths take turns.
`host_us` is the median time from call to return, over rounds of some calls in a row, with the
device idle before each round; `low` and `high` are its quartiles. On a GPU `graph_us` is the device
time of one call in a captured graph.

- package: NAME.<problem>, as programs call it. Integers of a range are asserted in it.
- unchecked: the same without a look at integers, lengths and tables.
- asserting: packed and paged attention after `assert_tables()`; on a GPU alone.
- operator: torch.ops.NAME.<problem>.
- fallback: PyTorch for the same call. Of packed and paged attention it waits for a GPU's lengths,
  and in a graph it pads.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from call_timing import about, device_of, run, times_of


def measured(module: Any, number: int, calls: int, rounds: int) -> dict[str, Any]:
    kernels = module._loaded._kernels
    symbols = kernels.dispatch.exact_cases()[number]
    device = device_of(module)
    paths = paths_of(module, symbols, device)
    rows = times_of(paths, device, calls=calls, rounds=rounds, warm_up=20, in_graphs=paths)
    ratios = {}
    for figure in ("host_us", "graph_us"):
        found = {row["path"]: row[figure] for row in rows if figure in row}
        for other in sorted({"unchecked", "fallback"} & found.keys()):
            ratios[f"package / {other}, {figure}"] = found["package"] / found[other]
    assert not module.info()["misses"], module.info()["misses"]
    return {
        **about("export_named_call", module, calls, rounds),
        "case": symbols,
        "ratios": ratios,
        "paths": rows,
    }


def paths_of(
    module: Any, symbols: dict[str, Any], device: torch.device
) -> dict[str, Callable[[], object]]:
    kernels, calls = module._loaded._kernels, module._loaded._calls
    is_ragged = hasattr(module, "assert_tables")
    checking = f".{'_ragged' if is_ragged else '_problem'}_checking"
    made = importlib.import_module(checking, module.__name__).timed_inputs
    tensors, options = made(kernels, symbols, device)
    function = getattr(module, kernels.call_name)
    package = calls.call if is_ragged else function
    decision = kernels.decide(tensors, options)
    kernels.run(tensors, options)  # which raises where nothing serves the case

    def launched(examine: Callable[..., object] | None) -> object:
        if examine is not None:
            examine(tensors)
        here = [tensor for tensor in tensors if tensor is not None]
        outputs = decision.empty(here[0])
        decision.launch(*here, *outputs)
        return outputs

    paths: dict[str, Callable[[], object]] = {
        "package": lambda: package(*tensors, **options),
        "unchecked": lambda: launched(None),
        "operator": lambda: calls.overload(*tensors, **options),
    }
    if kernels.fallback is not None:
        paths["fallback"] = lambda: kernels.fallback(*tensors, **options)
    if is_ragged and device.type != "cpu":
        kernels.asserts_tables = True
        examine = kernels.examining(kernels.symbols(tensors, options), tensors)
        kernels.asserts_tables = False
        paths["asserting"] = lambda: launched(examine)
    return paths


if __name__ == "__main__":
    run(__doc__, measured, calls=50, numbered=True)
