"""Times calls of an exported attention package that have features, case by case.

    python benchmarks/export_feature_call.py PACKAGE [--calls 20] [--rounds 60] [-o FILE]

PACKAGE is the package's module folder (DIR/NAME of `evotune export`), of a space with features such
as attention-mma-features. All timed cases that have features and are served are called, on seeded
inputs; the paths of a case take turns. `host_us`, `low`, `high` and `graph_us` are as those of
`export_call.py`.

- package: NAME.attention with the features.
- operator: torch.ops.NAME.attention_with_features, which graphs of torch.compile contain.
- PyTorch: the same in plain PyTorch, as a call that no kernel serves.
- SDPA: scaled_dot_product_attention on the same tensors, without the features.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from export_call import graph_us, host_us, show

_WARM_UP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    folder = arguments.package.resolve()
    sys.path.insert(0, str(folder.parent))
    module = importlib.import_module(folder.name)
    warnings.simplefilter("ignore")
    with torch.no_grad():
        result = measured(module, arguments.calls, arguments.rounds)
    show(result, arguments.output)


def measured(module: Any, calls: int, rounds: int) -> dict[str, Any]:
    kernels = module._loaded._kernels
    device = torch.device(kernels.kernels.device_type)
    rows, ratios = [], {}
    for symbols in kernels.dispatch.exact_cases():
        words, paths = paths_of(module, symbols, device)
        if not paths:
            continue
        before = module.info()["calls"]
        for call in paths.values():
            for _ in range(_WARM_UP):
                call()
        if module.info()["calls"] == before:
            raise SystemExit(f"no kernel serves {words} here: {module.info()['misses']}")
        times: dict[str, list[float]] = {name: [] for name in paths}
        for _ in range(rounds):
            for name, call in paths.items():
                times[name].append(host_us(call, calls, device))
        medians = {}
        for name, call in paths.items():
            low, medians[name], high = statistics.quantiles(times[name], n=4)
            row = {"path": name, "case": words, "host_us": medians[name], "low": low, "high": high}
            if device.type != "cpu":
                row["graph_us"] = graph_us(call)
            rows.append(row)
        for other in ("PyTorch", "SDPA"):
            ratios[f"package / {other}, {words}"] = medians["package"] / medians[other]
    properties = torch.cuda.get_device_properties(device).name if device.type != "cpu" else ""
    return {
        "command": "python benchmarks/export_feature_call.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": properties or kernels.kernels.device_name,
        "launcher": module.info()["launcher"],
        "calls": calls,
        "rounds": rounds,
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
    main()
