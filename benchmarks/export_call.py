"""Times what one call of an exported attention package costs the host, path by path.

    python benchmarks/export_call.py PACKAGE [--case N] [--modes] [--calls 50] [--rounds 60]
        [-o FILE]

PACKAGE is the package's module folder (DIR/NAME of `evotune export`). All paths compute the same
case: the N-th that was timed and is served. They take turns, so that all see the machine alike.
`host_us` is the median time from call to return, over rounds of some calls in a row, with the
device idle before each round; `low` and `high` are its quartiles. On a GPU `graph_us` is the device
time of one call in a captured graph, and SDPA's beside it.

- allocation: torch.empty_like(q), which every path makes.
- empty op: an operator of torch.library with these arguments, which allocates the output.
- package: NAME.attention, with the launcher that `info()` names.
- package, operator: the same through a private operator instead of native code's function.
- package, ctypes: the same without native code.
- function: the function of native code that NAME.attention calls.
- operator: torch.ops.NAME.attention.
- operator, graph: the operator that graphs of torch.compile contain.
- hook: F.scaled_dot_product_attention while the package is active.
- SDPA: the same before.
- SDPA, miss: SDPA on a case that the package does not serve; hook, miss: that while it is active.

With `--modes` the last four paths, and calls with a mask, run in each of these states of PyTorch:
plain, a default device, autocast (to the kernels' type, and to another one, so that it casts), a
profiler, inference mode. "Python hook" is the hook of a package without native code. `extra_us` is
what a call costs on top of SDPA in the same state.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from lab.call_timing import about, device_of, run, times_of

_IN_GRAPHS = ("package", "SDPA", "hook")


def measured(
    module: Any, number: int, calls: int, rounds: int, modes: bool = False
) -> dict[str, Any]:
    kernels = module._loaded._kernels
    symbols = kernels.dispatch.exact_cases()[number]
    device = device_of(module)
    heads = int(symbols["heads"])
    kv_heads = int(symbols.get("kv_heads", heads // int(symbols.get("group", 1))))
    causal, head_dim = bool(symbols["causal"]), int(symbols["head_dim"])

    def tensor(count: int, length: int) -> torch.Tensor:
        shape = (int(symbols["batch"]), count, length, head_dim)
        return torch.randn(shape, device=device).to(kernels.dtype)

    q = tensor(heads, int(symbols["seq_len_q"]))
    k, v = (tensor(kv_heads, int(symbols["seq_len_k"])) for _ in range(2))
    options = {"is_causal": causal, "enable_gqa": heads != kv_heads}
    if modes:
        states = states_of(device, kernels.dtype)
        rows = modes_of(module, (q, k, v), options, states, calls=calls, rounds=rounds)
        extra = {f"extra µs, {row['path']}": row["extra_us"] for row in rows if "extra_us" in row}
        circumstances = about("export_call", module, calls, rounds)
        return {**circumstances, "case": symbols, "ratios": extra, "paths": rows}
    paths = paths_of(module, (q, k, v), options)
    rows = times_of(paths, device, calls=calls, rounds=rounds, warm_up=20, in_graphs=_IN_GRAPHS)
    medians = {row["path"]: row["host_us"] for row in rows}
    return {
        **about("export_call", module, calls, rounds),
        "launcher": module.info()["launcher"],
        "case": symbols,
        "ratios": {
            f"package / {other}": medians["package"] / medians[other]
            for other in ("SDPA", "empty op", "package, operator")
            if other in medians
        },
        "paths": rows,
    }


def paths_of(
    module: Any, tensors: tuple[torch.Tensor, ...], options: dict[str, Any]
) -> dict[str, Callable[[], object]]:
    package = module._loaded
    q, k, v = tensors
    causal, grouped = options["is_causal"], options["enable_gqa"]
    empty = empty_operator(q.device.type)
    operator = package._operator.public
    serve, call = package._kernels.serve, call_type(module)
    calls, scale = package._calls, q.shape[3] ** -0.5
    through_operator = copy.copy(calls)
    through_operator._direct = None
    without = through_operator.public(None)
    odd, odd_scale = unserved(module, tensors, causal, grouped)
    replaced = with_hook(module)
    paths: dict[str, Callable[[], object]] = {
        "allocation": lambda: torch.empty_like(q),
        "empty op": lambda: empty(q, k, v, causal, None, grouped),
        "package": lambda: module.attention(q, k, v, **options),
        "package, ctypes": lambda: serve(call(q, k, v, causal, None, grouped)),
        "operator": lambda: operator(q, k, v, causal, None, grouped),
        "operator, graph": lambda: package._operator.served(q, k, v, causal, scale, grouped),
        "hook": lambda: replaced(q, k, v, **options),
        "SDPA": lambda: F.scaled_dot_product_attention(q, k, v, **options),
        "SDPA, miss": lambda: F.scaled_dot_product_attention(*odd, scale=odd_scale, **options),
        "hook, miss": lambda: replaced(*odd, scale=odd_scale, **options),
    }
    if calls._direct is not None:
        rest = (None, 0.0, causal, None, grouped)
        paths["package, operator"] = lambda: without(q, k, v, **options)
        paths["function"] = lambda: calls._direct(q, k, v, *rest)
    return paths


def states_of(
    device: torch.device, dtype: torch.dtype
) -> dict[str, Callable[[], contextlib.AbstractContextManager[object]]]:
    """The states of PyTorch, by name."""
    activity = torch.profiler.ProfilerActivity
    seen = [activity.CPU] if device.type == "cpu" else [activity.CPU, activity.CUDA]
    low = torch.bfloat16 if dtype == torch.float32 else dtype
    other = torch.float16 if low == torch.bfloat16 else torch.bfloat16
    return {
        "plain": contextlib.nullcontext,
        "default device": lambda: torch.device(device),
        "autocast": lambda: torch.autocast(device.type, low),
        "autocast that casts": lambda: torch.autocast(device.type, other),
        "profiler": lambda: torch.profiler.profile(activities=seen),
        "inference mode": torch.inference_mode,
    }


def modes_of(
    module: Any,
    tensors: tuple[torch.Tensor, ...],
    options: dict[str, Any],
    states: dict[str, Callable[[], contextlib.AbstractContextManager[object]]],
    *,
    calls: int,
    rounds: int,
) -> list[dict[str, Any]]:
    """A row for each path in each state. In a state all paths take turns."""
    q, k, v = tensors
    causal, grouped = options["is_causal"], options["enable_gqa"]
    odd, scale = unserved(module, tensors, causal, grouped)
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    masked = {"attn_mask": mask, "enable_gqa": grouped}
    before, replaced = F.scaled_dot_product_attention, with_hook(module)
    sides = {"SDPA": before, "hook": replaced, "Python hook": in_python(module, before)}
    rows = []
    for state, entered in states.items():
        paths: dict[str, Callable[[], object]] = {}
        for side, function in sides.items():
            paths |= {
                f"{side}, {state}": partial(function, q, k, v, **options),
                f"{side}, miss, {state}": partial(function, *odd, scale=scale, **options),
                f"{side}, mask, {state}": partial(function, q, k, v, **masked),
            }
        with entered():
            found = times_of(paths, q.device, calls=calls, rounds=rounds, warm_up=20, in_graphs=())
        beside = {row["path"]: row["host_us"] for row in found}
        for row in found:
            side, _, path = row["path"].partition(", ")
            if side != "SDPA":
                row["extra_us"] = row["host_us"] - beside[f"SDPA, {path}"]
        rows += found
    return rows


def call_type(module: Any) -> Any:
    """The package's class of a call's arguments."""
    return sys.modules[f"{module.__name__}._attention_package"].Call


def unserved(
    module: Any, tensors: tuple[torch.Tensor, ...], causal: bool, grouped: bool
) -> tuple[list[torch.Tensor], float]:
    """Tensors a little shorter, and a scale, that no kernel serves."""
    kernels, call = module._loaded._kernels, call_type(module)
    for scale in (tensors[0].shape[3] ** -0.5, 0.3):
        for rows in (1, tensors[0].shape[2] // 3):
            odd = [t[:, :, : max(1, t.shape[2] - rows)].contiguous() for t in tensors]
            if kernels.serve(call(*odd, causal, scale, grouped)) is None:
                return odd, scale
    raise SystemExit("the package serves every case that was tried: choose another --case")


def with_hook(module: Any) -> Callable[..., torch.Tensor]:
    """The function that stands in torch.nn.functional while the package is active; it goes on
    asking the package, which is asked for nothing else afterwards."""
    module.activate()
    replacement = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = torch._C._nn.scaled_dot_product_attention
    return replacement


def in_python(module: Any, original: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """The function that would stand in torch.nn.functional if the package had no native code."""
    calls = copy.copy(module._loaded._calls)
    calls._direct = calls._native = None
    layer = sys.modules[f"{module.__name__}._sdpa_hook"]._Layer(original)
    layer.servers = (calls.attempt,)
    found: Callable[..., torch.Tensor] = layer.replacement
    return found


def empty_operator(device_type: str) -> Callable[..., torch.Tensor]:
    library: Any = torch.library.Library("evotune_benchmark", "DEF")
    library.define(
        "empty(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None, "
        "bool enable_gqa=False) -> Tensor"
    )

    def empty(q: torch.Tensor, *others: object) -> torch.Tensor:
        return torch.empty_like(q)

    library.impl("empty", empty, device_type.upper())
    operator = torch.ops.evotune_benchmark.empty.default
    operator.library = library  # which must not be collected
    return operator


if __name__ == "__main__":
    run(__doc__, measured, calls=50, numbered=True, modes=True)
