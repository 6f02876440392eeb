"""Runs to export: tuned here in seconds, or fabricated for a GPU that is not here."""

from __future__ import annotations

from pathlib import Path

import msgspec

from evotune.engine.folder import RunFolder
from evotune.store import RunStore
from evotune.trial import Outcome
from tests.engine.runs import run_here

ROOT = Path(__file__).parents[2]
SHAPES = {
    "attention-cpu": "shapes: [{batch: 1, heads: 2, seq_len: 64, head_dim: 32}]",
    "softmax-cpu": "shapes: [{rows: 16, columns: 64}]",
}
HELD_OUT = {
    "attention-cpu": "held_out: [{batch: 2, heads: 2, seq_len: 60, head_dim: 32}]",
    "softmax-cpu": "held_out: [{rows: 15, columns: 60}]",
}


def tiny_space(name: str, folder: Path) -> Path:
    """A shipped space on tiny shapes."""
    text = (ROOT / "search_spaces" / f"{name.replace('-', '_')}.yaml").read_text()
    lines = []
    for line in text.splitlines():
        if line.startswith("  shapes:"):
            lines.append(f"  {SHAPES[name]}")
        elif line.startswith("  held_out:"):
            lines.append(f"  {HELD_OUT[name]}")
        else:
            lines.append(line)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "space.yaml"
    path.write_text("\n".join([*lines, f"root: {ROOT}", ""]))
    return path


def tuned(name: str, folder: Path, *, speedup: float | None = 1.25) -> RunFolder:
    """A run of two trials with one confirmed champion. Its times are what they are on this machine;
    `speedup` takes their place, so that the same cases win everywhere."""
    run = run_here(tiny_space(name, folder), folder / "runs", trials=2, champions=1, seed=0)
    return run if speedup is None else with_speedup(run, speedup)


def with_speedup(run: RunFolder, speedup: float, **cases: float) -> RunFolder:
    """Writes another speedup into the confirmations; `cases` have their own."""
    with RunStore.open_for_writing(run.store) as store:
        for number, outcome in store.confirmations().items():
            store.confirm(number, faster(outcome, speedup, **cases), 100.0)
    return run


def faster(outcome: Outcome, speedup: float, **cases: float) -> Outcome:
    measurements = []
    for each in outcome.measurements:
        own = cases.get(each.case, speedup)
        changed = {"speedup": own, "speedup_low": own * 0.98, "speedup_high": own * 1.02}
        measurements.append(msgspec.structs.replace(each, **changed))
    return msgspec.structs.replace(outcome, measurements=tuple(measurements))
