"""Runs `evotune.tune_model` on twelve models with random weights, and keeps what each gains.

    python benchmarks/models.py [--models NAME...] [--minutes 4] [--dtype float16]
        [--folder FOLDER] [-o FILE] [--tiny]
    python benchmarks/models.py --table FILE

Each model runs in a process of its own, under torch.inference_mode(), and has a folder in FOLDER
(tuned_models), so the same command goes on where it was stopped. A record for each is appended to
FILE: the calls of attention with their times and gains, the share of attention's time that is
served, the gain of attention (on a GPU in CUDA graphs), and the model's gain eager, compiled and in
a graph, all with 95% intervals. `--table` prints the last record of each model and dtype.

`--tiny`: models of one or two small layers in float32 on the CPU. The T5, BERT, Mistral, Qwen2 and
Whisper models need transformers.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import models_of_attention as own
import msgspec
import torch

import evotune

MODELS: Mapping[str, Callable[[bool], tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]]] = {
    "vit-b16": own.vit_b16,
    "deit-s-384": own.deit_s_384,
    "siglip-b": own.siglip_b,
    "clip-l": own.clip_l,
    "swin-b": own.swin_b,
    "t5-base": own.t5_base,
    "bert-padded": own.bert_padded,
    "mistral-window": own.mistral_window,
    "qwen2": own.qwen2,
    "whisper": own.whisper,
    "unet-block": own.unet_block,
    "decoder-loop": own.decoder_loop,
}
WAYS = ("eager", "compiled", "graph")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = {"type": lambda text: text.split(","), "metavar": "NAME,…"}
    parser.add_argument("--models", default=list(MODELS), **names)
    parser.add_argument("--minutes", type=float, help="of each model's search; defaults to 4")
    parser.add_argument("--trials", type=int, help="of each model's search, in place of minutes")
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16", "float32"))
    parser.add_argument("--folder", type=Path, default=Path("tuned_models"))
    parser.add_argument("--misses-only", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--table", type=Path, metavar="FILE")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--child", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return 0
    if options.child:
        print(json.dumps(measured(options.child, options)))
        return 0
    records = [record_of(name, options) for name in options.models]
    print(table(records))
    return 1 if any("failed" in each or each["fault"] for each in records) else 0


def record_of(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The record of a process of its own, which is appended to the file."""
    words = [word for word in sys.argv[1:] if word != "--child"]
    started = time.monotonic()
    process = subprocess.run(
        [sys.executable, __file__, *words, "--child", name], stdout=subprocess.PIPE, check=False
    )
    lines = process.stdout.decode().splitlines()
    if process.returncode == 0:
        record = json.loads(lines[-1])
        print("\n".join([*lines[:-1], ""]))
    else:
        record = {"model": name, "failed": f"the process ended with {process.returncode}"}
    record["seconds"] = round(time.monotonic() - started, 1)
    if options.output:
        kept = json.loads(options.output.read_text()) if options.output.exists() else []
        options.output.write_text(json.dumps([*kept, record], indent=1) + "\n")
    return record


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Tunes the model in this process."""
    torch.manual_seed(0)
    device, dtype = ("cpu", "float32") if options.tiny else ("cuda", options.dtype)
    model, given, named = MODELS[name](options.tiny)

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device, getattr(torch, dtype) if value.is_floating_point() else None)

    model = model.to(device, getattr(torch, dtype)).eval()
    minutes = 4.0 if options.minutes is None and options.trials is None else options.minutes
    with torch.inference_mode():
        package = evotune.tune_model(
            model,
            *map(placed, given),
            kwargs={key: placed(value) for key, value in named.items()},
            minutes=minutes,
            trials=options.trials,
            folder=options.folder / f"{name}_{dtype}".replace("-", "_"),
            misses_only=options.misses_only,
        )
    found = msgspec.to_builtins(package)
    return {
        "model": name,
        "dtype": dtype,
        "served": package.served_share,
        "attention": msgspec.to_builtins(package.attention),
        **{key: found[key] for key in ("gains", "skipped", "error", "allowed", "fault", "device")},
        "calls": [
            {
                "case": call.case,
                **{key: getattr(call, key) for key in ("count", "time_us", "why", "fault")},
                "function": call.call.get("function"),
                "gain": msgspec.to_builtins(call.gain),
            }
            for call in package.calls
        ],
        "minutes": minutes,
        "versions": {each: _version(each) for each in ("torch", "transformers", "evotune")},
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["benchmarks/models.py", *sys.argv[1:]]),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def table(records: list[dict[str, Any]]) -> str:
    """A line for the last record of each model and dtype, and what they have together."""
    last = {(each["model"], each.get("dtype")): each for each in records}
    lines = [f"{'model':16}{'served':>8}  {'attention':23}" + "".join(f"{w:23}" for w in WAYS)]
    for (name, dtype), record in last.items():
        if "failed" in record:
            lines.append(f"{name:16}{record['failed']}")
            continue
        cells = [record["attention"], *(record["gains"].get(way) for way in WAYS)]
        told = "".join(f"{_interval(cell):23}" for cell in cells)
        lines.append(f"{name:16}{record['served']:8.1%}  {told}{dtype} {record['fault']}".rstrip())
    gains = [each["attention"]["speedup"] for each in last.values() if each.get("attention")]
    if gains:
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        lines.append(f"attention, geometric mean of {len(gains)}: {mean:.3f}x")
    return "\n".join(lines)


def _interval(gain: Mapping[str, float] | None) -> str:
    if gain is None:
        return "-"
    return f"{gain['speedup']:.3f} [{gain['low']:.3f}, {gain['high']:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
