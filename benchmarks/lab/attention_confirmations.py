"""Confirms recorded champions again: `attention_cuda.py --confirm`."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tuning import derive

from evotune.backends.cuda import CudaBackend
from evotune.problems.libraries import asked
from evotune.runs.confirming import outcome_of, repeated
from evotune.runs.kernel_executor import chosen_baseline, open_kernel_executor
from evotune.runs.setup import load_kernel_setup
from evotune.trial import Configuration, Measurement
from evotune.workers.executor import HELD_OUT, TIMED

Shape = tuple[int, int, int, int, int, int]
"""Batch, query heads, key and value heads, queries, keys, head size."""


@dataclass(frozen=True)
class Job:
    name: str
    space: str
    shape: Shape
    masks: tuple[bool, ...]
    """Causal or not. With both, one configuration is tuned for the mean of the two."""
    trials: int
    start: dict[str, Any] = field(default_factory=dict)
    """The first configuration to try, where the space's own suits the shape badly."""
    layout: str = ""
    """Where the tensors lie, if not contiguous."""

    def problem(self) -> dict[str, Any]:
        lie = {"layout": self.layout} if self.layout else {}
        return {
            "shapes": [self.sizes()],
            "variants": [{"causal": causal, **lie} for causal in self.masks],
            "held_out": [self._sizes(self._nearby())],
        }

    def _nearby(self) -> Shape:
        """The held-out shape: another batch size, and lengths that no tile divides."""
        batch, heads, kv_heads, queries, keys, head_dim = self.shape
        return (batch + 1, heads, kv_heads, max(1, queries - 12), keys - 12, head_dim)

    def sizes(self) -> dict[str, int]:
        return self._sizes(self.shape)

    @staticmethod
    def _sizes(shape: Shape) -> dict[str, int]:
        names = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim")
        return dict(zip(names, shape, strict=True))


@dataclass(frozen=True)
class Manner:
    """How champions are confirmed: the options of --confirm, but for the type."""

    baseline: str = ""
    layout: str = ""
    heat_s: float = 0.0


DEFAULT_DTYPE = "float16"


def type_of(record: Mapping[str, Any]) -> str:
    """A record without a type is from before there were others."""
    return str(record.get("dtype", DEFAULT_DTYPE))


class Unfit(Exception):
    """A champion cannot run on the cases; the message is the reason."""


def confirm(
    job: Job, record: Mapping[str, Any], manner: Manner, dtype: str = DEFAULT_DTYPE
) -> dict[str, Any]:
    """Puts a recorded champion through today's confirmation, as a run confirms its first one. It
    may have been found in another type than `dtype`, in which it is confirmed."""
    found_in = type_of(record)
    with tempfile.TemporaryDirectory() as folder:
        problem = {**job.problem(), "dtype": dtype}
        if manner.layout:
            others = [{**each, "layout": manner.layout} for each in problem["variants"]]
            problem["variants"] += others
        changes: dict[str, Any] = {"problem": problem}
        if manner.baseline:
            changes["baseline"] = manner.baseline
        path = derive(job.space, changes, Path(folder) / "space.yaml")
        setup = load_kernel_setup(path, "cuda:0")
        planner = setup.planner
        defaults = setup.space.default()
        known = record["configuration"]
        values = Configuration({name: known.get(name, defaults[name]) for name in defaults})
        searched = planner.proposal(record["trial"], values)
        if searched.rejection:
            raise Unfit(searched.rejection)
        executor = open_kernel_executor(setup, Path(folder))
        try:
            executor.open_devices()
            cases = [case for group in setup.cases.values() for case in group]
            timings = executor.time_baselines(cases, asked(setup.document.baseline)).timings
            executor.baselines = {
                case.label: chosen_baseline(setup.document, case, timings)
                for case in setup.cases[TIMED] + setup.cases[HELD_OUT]
            }
            run = functools.partial(outcome_of, executor)
            run(searched)  # a search has compiled its champion
            heat(manner.heat_s)
            started_s = time.monotonic()
            proposal = planner.proposal(record["trial"], values, confirm=True)
            outcome = repeated(
                run, proposal, run(proposal), least_width=CudaBackend.least_half_width
            )
            seconds = time.monotonic() - started_s
        finally:
            executor.close()
    return {
        "name": job.name,
        "dtype": dtype,
        "found_in": found_in,
        "outcome": outcome.kind.value,
        "reason": outcome.reason,
        "flags": list(outcome.flags),
        "seconds": round(seconds, 1),
        "stage_s": {name: round(value, 2) for name, value in outcome.stage_s.items()},
        "device": outcome.resources.get("device"),
        "measurements": [
            {
                "case": m.case,
                "cache": m.cache,
                "held_out": m.held_out,
                "time_us": m.time_us,
                "baseline": m.baseline,
                "baseline_us": m.baseline_us,
                "speedup": m.speedup,
                "speedup_low": m.speedup_low,
                "speedup_high": m.speedup_high,
                "processes": list(m.processes),
                "before": speedup_before(record, m) if found_in == dtype else None,
            }
            for m in outcome.measurements
        ],
    }


def speedup_before(record: Mapping[str, Any], now: Measurement) -> float | None:
    """The recorded speedup against the same baseline."""
    same = (now.case, now.cache, now.baseline)
    for each in record["measurements"]:
        if (each["case"], each["cache"], each["baseline"]) == same:
            return float(each["speedup"])
    return None


def heat(seconds: float) -> None:
    """Keeps the tensor cores busy."""
    if not seconds:
        return
    a = torch.randn(8192, 8192, device="cuda").half()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for _ in range(10):
            a @ a
        torch.cuda.synchronize()


def confirm_all(
    jobs: Sequence[Job], records: Mapping[str, dict[str, Any]], options: argparse.Namespace
) -> None:
    """Confirms the recorded champions of `jobs` that the options' file has not in this type."""
    only, output, dtype = options.only or (), options.output, options.dtype
    manner = Manner(options.baseline, options.layout, options.heat)
    record: dict[str, Any] = {
        "command": f"python benchmarks/lab/attention_cuda.py {' '.join(sys.argv[1:])}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": metadata.version("torch"),
        "manner": dataclasses.asdict(manner),
        "confirmed": [],
    }
    if output and output.exists():
        kept = {"manner": dataclasses.asdict(Manner()), **json.loads(output.read_text())}
        if kept["manner"] != record["manner"]:
            sys.exit(f"{output} was made with other options: {kept['manner']}")
        record |= kept
    found: list[dict[str, Any]] = record["confirmed"]
    shown = ("name", "dtype", "outcome", "reason", "seconds", "device")
    done = {each["name"] for each in found if type_of(each) == dtype}
    for job in jobs:
        if job.name not in records or job.name in done or (only and job.name not in only):
            continue
        try:
            found.append(confirm(job, records[job.name], manner, dtype))
        except Unfit as reason:
            print(f"{job.name}: {reason}", file=sys.stderr)
            continue
        about = {name: found[-1][name] for name in shown}
        warm = [m for m in found[-1]["measurements"] if m["cache"] == "warm"]
        speedups = [[round(m["speedup"], 3), m["before"]] for m in warm if not m["held_out"]]
        print(json.dumps({**about, "speedups": speedups}), flush=True)
        if output:
            output.write_text(json.dumps(record, indent=1) + "\n")
