"""Times calls of an exported attention package that have features, case by case.

    python benchmarks/lab/export_feature_call.py PACKAGE [--calls 20] [--rounds 60] [-o FILE]

PACKAGE is the package's module folder (DIR/NAME of `evotune export`), of a space with features such
as attention-mma-features. All timed cases that have features and are served are called, on seeded
inputs; the paths of a case take turns. `host_us`, `low`, `high` and `graph_us`: `call_timing.py`.

- package: NAME.attention with the features.
- operator: torch.ops.NAME.attention_with_features, which graphs of torch.compile contain.
- PyTorch: the same in plain PyTorch, as a call that no kernel serves.
- SDPA: scaled_dot_product_attention on the same tensors, without the features.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from call_timing import about, device_of, run, times_of


def measured(module: Any, calls: int, rounds: int) -> dict[str, Any]:
    kernels = module._loaded._kernels
    device = device_of(module)
    rows, ratios = [], {}
    for symbols in kernels.dispatch.exact_cases():
        words, paths = paths_of(module, symbols, device)
        if not paths:
            continue
        before = module.info()["calls"]
        timed = times_of(paths, device, calls=calls, rounds=rounds, warm_up=5, in_graphs=paths)
        if module.info()["calls"] == before:
            raise SystemExit(f"no kernel serves {words} here: {module.info()['misses']}")
        rows += [{"case": words, **row} for row in timed]
        medians = {row["path"]: row["host_us"] for row in timed}
        for other in ("PyTorch", "SDPA"):
            ratios[f"package / {other}, {words}"] = medians["package"] / medians[other]
    return {
        **about("export_feature_call", module, calls, rounds),
        "launcher": module.info()["launcher"],
        "ratios": ratios,
        "paths": rows,
    }


def paths_of(
    module: Any, symbols: Mapping[str, Any], device: torch.device
) -> tuple[str, dict[str, Callable[[], object]]]:
    """The case in words, and its paths; none for a case without features."""
    own = module.__name__
    call_of, plain = (
        importlib.import_module(f"{own}.{name}") for name in ("_checking", "_plain_features")
    )
    kernels, features = module._loaded._kernels, module._loaded._feature_calls
    call = call_of.seeded_call(kernels, symbols, device)
    asked, tensors = call.asked, call[:3]
    if asked == type(asked)():
        return "", {}
    plainly = {"is_causal": call.is_causal, "scale": call.scale, "enable_gqa": call.enable_gqa}
    named = {
        **plainly,
        "alignment": "bottom_right" if asked.bottom_right else "top_left",
        "window": (asked.window_left, asked.window_right),
        "softcap": asked.softcap,
        "alibi_slopes": call.slopes,
        "score_mod": asked.score_mod,
        "sinks": call.sinks,
        "return_lse": asked.lse,
    }
    operator = getattr(torch.ops, module._loaded._operator.namespace).attention_with_features
    arguments = importlib.import_module(f"{own}._feature_calls").arguments_of(call)
    return call_of.words_of(symbols), {
        "package": lambda: module.attention(*tensors, **named),
        "operator": lambda: operator(*arguments),
        "PyTorch": lambda: plain.plain_with_features(call, features.trees),
        "SDPA": lambda: F.scaled_dot_product_attention(*tensors, **plainly),
    }


if __name__ == "__main__":
    run(__doc__, measured, calls=20, numbered=False)
