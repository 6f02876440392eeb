"""Writes the table of recorded champions that searches of the family `attention` begin with.

    python benchmarks/lab/champion_table.py [-o search_spaces/attention_champions.json]

Needs no GPU: it reads the figures in `benchmarks/results`. Of each case and space the table has the
configuration of the champion with the greatest lower bound, and of each configuration at most six
cases: those with the greatest lower bounds. Features of a case (windows, sinks) are left out: the
table is for starts of a search, and the nearest sizes decide.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TABLE = ROOT / "search_spaces" / "attention_champions.json"

_DENSE = re.compile(r"\((\d+),(\d+)(?:/(\d+))?,(\d+)(?:x(\d+))?,(\d+)(?:/\d+)?(?:,.*)?\) (\w+)")
_MOST_CASES = 6
_BY_RUNG = {"mma": "attention-mma-features", "wgmma": "attention-wgmma-features"}


class Found(NamedTuple):
    """A champion on a case."""

    space: str
    case: dict[str, Any]
    configuration: dict[str, Any]
    low: float


def sizes(label: str) -> dict[str, Any]:
    """The symbols of a case, from its label."""
    dense = _DENSE.fullmatch(label)
    if dense is not None:
        batch, heads, kv_heads, q, k, head_dim, mask = dense.groups()
        return {
            "batch": int(batch),
            "heads": int(heads),
            "kv_heads": int(kv_heads or heads),
            "seq_len_q": int(q),
            "seq_len_k": int(k or q),
            "head_dim": int(head_dim),
            "causal": mask == "causal",
        }
    inside, _, mask = label.strip("(").partition(") ")
    found: dict[str, Any] = {"causal": mask == "causal"}
    for part in inside.split(","):
        name, _, value = part.partition("=")
        if value:
            found[name] = int(value)
        else:
            found["lengths"] = name
    return found


def champions() -> Iterator[Found]:
    """Those of the figures that name a space, by case."""
    for job in _jobs("attention_h200.json"):
        yield from _of(job["space"].replace("_", "-"), job)
    for job in _jobs("attention_features_h200.json"):
        yield from _of(_BY_RUNG[job["rung"]], job)
    for job in _jobs("attention_ragged_h200.json"):
        wgmma = "-wgmma" if "wgmma" in job["name"] else ""
        space = f"attention-varlen{wgmma}" if "packed" in job["name"] else "attention-paged"
        yield from _of(space, job)
    for record in _read("attention_cpu.json")["results"]:
        yield from _of("attention-cpu", record)
    portfolio = _read("portfolio_h200.json")
    kernels = {(each["run"], each["trial"]): each["configuration"] for each in portfolio["kernels"]}
    for cell in portfolio["cells"]:
        configuration = kernels.get((cell["run"], cell["trial"]))
        if configuration is not None and cell["outcome"] == "ok":
            low = cell["speedup_low"]
            yield Found(portfolio["space"], sizes(cell["case"]), configuration, low)


def table() -> dict[str, Any]:
    """Configurations with the cases that each is best for, by space."""
    best: dict[tuple[str, str], Found] = {}
    for found in champions():
        key = found.space, json.dumps(found.case, sort_keys=True)
        if key not in best or best[key].low < found.low:
            best[key] = found
    spaces: dict[str, dict[str, Any]] = {}
    for found in sorted(best.values(), key=lambda each: -each.low):
        own = spaces.setdefault(found.space, {})
        text = json.dumps(found.configuration)
        own.setdefault(text, {"configuration": found.configuration, "cases": []})
        if len(own[text]["cases"]) < _MOST_CASES:
            own[text]["cases"].append({"case": found.case, "speedup_low": round(found.low, 3)})
    return {space: list(entries.values()) for space, entries in sorted(spaces.items())}


def _of(space: str, job: dict[str, Any]) -> Iterator[Found]:
    for measured in job["measurements"]:
        if not measured["held_out"] and measured["cache"] == "warm":
            low = measured["speedup_low"]
            yield Found(space, sizes(measured["case"]), job["configuration"], low)


def _jobs(name: str) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = _read(name)["jobs"]
    return jobs


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def text() -> str:
    """The file: a line for each configuration and for each case."""
    lines = []
    for space, entries in table().items():
        inside = ",\n".join(
            f'  {{"configuration": {json.dumps(entry["configuration"])},\n   "cases": [\n    '
            + ",\n    ".join(map(json.dumps, entry["cases"]))
            + "]}"
            for entry in entries
        )
        lines.append(f"{json.dumps(space)}: [\n{inside}\n ]")
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=TABLE)
    parser.parse_args().output.write_text(text())


if __name__ == "__main__":
    main()
