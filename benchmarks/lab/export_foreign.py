"""Calls exported attention packages on a device that they are not for, and checks the results.

    python benchmarks/lab/export_foreign.py PACKAGE... [-o FILE]

PACKAGE is a package's module folder (DIR/NAME of `evotune export`). A case of each region that its
kernels serve on their own device, with fewer heads and rows, is called in every way:
NAME.attention, torch.ops.NAME.attention, and F.scaled_dot_product_attention while the package is
active. No kernel may run. A call without features must give SDPA's bits, and one with features
(NAME.attention alone) must be within the gate's limits. A package must say exactly one reason, and
its check() must fail. Prints one JSON record; exit code 1 where something is not so, or where the
device is the package's own.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from exported import dtype_of, opened

from evotune.export.runtime._asked_features import asked_of
from evotune.problems.attention import Attention
from evotune.problems.problem import Case

_LONGEST = 2048
"""Of queries and keys: the reference's scores are in float64."""


def cases_of(module: ModuleType, problem: Attention) -> Iterator[Case]:
    """The first case of each measured region, or of all regions where there is none."""
    served = module.info()["served"]
    for region in [each for each in served if not each["near"]] or served:
        fixed = region["fixed"]
        first = {name: least for name, (least, _) in region["ranges"].items()}
        if fixed.get("score_mod") or "softcap" in first:
            continue  # not made here
        kv_heads = min(first["heads"] // first["group"], 2)
        shape = {
            "batch": first["batch"],
            "heads": kv_heads * first["group"],
            "kv_heads": kv_heads,
            "seq_len_q": min(first["seq_len_q"], _LONGEST),
            "seq_len_k": min(first["seq_len_k"], _LONGEST),
            "head_dim": fixed["head_dim"],
        }
        told = {name: fixed[name] for name in ("sinks", "alibi", "lse") if fixed.get(name)}
        told |= {name: first[name] for name in ("window_left", "window_right") if name in first}
        if fixed.get("bottom_right"):
            told["alignment"] = "bottom_right"
        yield problem.case(shape, {"causal": fixed["causal"], **told})


def looked_at(module: ModuleType) -> dict[str, Any]:
    """The package's results and reasons on this device. `wrong` names each result that is off and
    each expectation that does not hold."""
    problem = Attention(str(dtype_of(module)).removeprefix("torch."))
    wrong: list[str] = []
    found: list[dict[str, Any]] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for case in cases_of(module, problem):
            row = _called(module, problem, case)
            found.append({"case": case.label, **row})
            wrong += [f"{case.label}: {way}" for way, right in row.items() if not right]
    reasons = [str(each.message) for each in said if "not served" in str(each.message)]
    info = module.info()
    checked = bool(module.check())
    statements = {
        "the device is the package's own": info["device_matches"],
        "kernels ran": info["calls"] > 0,
        f"{len(reasons)} reasons were said": len(reasons) != 1,
        "check() passes": checked,
        "there is no case": not found,
    }
    return {
        "package": module.__name__,
        "of": info["device"],
        "with": info["measured_with"]["packages"]["torch"],
        "reasons": reasons,
        "misses": {name: each["count"] for name, each in info["misses"].items()},
        "cases": found,
        "wrong": wrong + [name for name, is_so in statements.items() if is_so],
    }


def _called(module: ModuleType, problem: Attention, case: Case) -> dict[str, bool]:
    """Whether each way's result is right."""
    inputs = problem.make_inputs(case, "normal", 0, "cuda" if torch.cuda.is_available() else "cpu")
    q, k, v = (inputs[name] for name in "qkv")
    options: dict[str, Any] = {
        "is_causal": bool(case.symbols["causal"]),
        "enable_gqa": q.shape[1] != k.shape[1],
    }
    if features := _features(case, inputs):
        out = module.attention(q, k, v, **options, **features)
        reference = problem.reference(case, inputs)["out"]
        allowed = problem.tolerances(case, inputs, {"out": reference})["out"]
        return {"attention": bool(((out - reference).abs() <= allowed).all())}
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    operator = getattr(torch.ops, module.__name__).attention
    results = {
        "attention": module.attention(q, k, v, **options),
        "operator": operator(q, k, v, **options),
    }
    with module.active():
        results["active"] = F.scaled_dot_product_attention(q, k, v, **options)
    return {way: torch.equal(out, expected) for way, out in results.items()}


def _features(case: Case, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The keywords of NAME.attention for the case's features; none where it has none."""
    asked = asked_of(case.symbols)
    found: dict[str, Any] = {}
    if asked.bottom_right:
        found["alignment"] = "bottom_right"
    if asked.window_left >= 0 or asked.window_right >= 0:
        right = asked.window_right
        found["window"] = (asked.window_left, None if right < 0 else right)
    return found | {name: inputs[name] for name in ("sinks", "alibi_slopes") if name in inputs}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="+", type=Path, metavar="PACKAGE")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    modules = [opened(path) for path in options.packages]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    packages = " ".join(path.name for path in options.packages)
    found = [looked_at(module) for module in modules]
    record = {
        "command": f"python benchmarks/lab/export_foreign.py {packages}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "packages": found,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 1 if any(each["wrong"] for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
