"""Runs `evotune` on the GPU and reads the records of its trials."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from evotune.trial import Json

ROOT = Path(__file__).parents[2]
EVOTUNE = [sys.executable, "-m", "evotune"]


def shipped(name: str) -> dict[str, Json]:
    """The document of a space that ships with evotune, to be changed and run from elsewhere."""
    space = yaml.safe_load((ROOT / "search_spaces" / f"{name}.yaml").read_text())
    return {**space, "root": str(ROOT)}


UNDECIDED = 6


def random_trials(space: Mapping[str, Json], folder: Path, count: int) -> list[Json]:
    return trials_of(space, folder, "--strategy", "random", "--trials", count)


def listed_trials(
    space: Mapping[str, Json], folder: Path, configurations: Sequence[Mapping[str, Json]]
) -> list[Json]:
    """The trials of just these configurations, in one run: starting one takes longer than most
    trials."""
    spec = listed(space, configurations)
    return trials_of(spec, folder, "--strategy", "exhaustive", "--trials", len(configurations))


def listed(
    space: Mapping[str, Json], configurations: Sequence[Mapping[str, Json]]
) -> dict[str, Json]:
    """The space with one more parameter, the number of the configuration that all others form. What
    a configuration does not name has the space's default."""
    configurations = [{**space["default"], **each} for each in configurations]
    parameters: dict[str, Json] = {"LISTED": list(range(len(configurations)))}
    constraints = []
    for name, first in configurations[0].items():
        values = list(dict.fromkeys(each[name] for each in configurations))
        # Expressions of the space may name choices that no listed configuration has.
        parameters[name] = values
        if isinstance(first, str):
            parameters[name] = {"choices": space["parameters"][name]["choices"]}
        for value in values:
            own = [n for n, each in enumerate(configurations) if each[name] == value]
            here = str(value).lower() if isinstance(value, bool) else value
            constraints.append(f"{name} == {here} or LISTED not in {own}")
    names = {"parameters": parameters, "default": {}, "try_first": [], "after_compile": []}
    reason = {"reason": "another configuration than the listed ones"}
    return {**space, **names, "constraints": [{"expr": e, **reason} for e in constraints]}


def trials_of(space: Mapping[str, Json], folder: Path, *options: object) -> list[Json]:
    """The trials of one run with one champion, which must not end by an error of evotune's own."""
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(dict(space)))
    runs = ["--runs-dir", str(folder / "runs")]
    words = [*map(str, options), "--champions", "1", "--device", "cuda:0"]
    done = subprocess.run([*EVOTUNE, "run", str(path), *words, *runs], check=False, timeout=500)
    if done.returncode == UNDECIDED:  # a short search leaves little time to confirm many cases
        resume = [*EVOTUNE, "resume", "latest", "--champions", "1", *runs]
        done = subprocess.run(resume, check=False, timeout=500)
    assert done.returncode in (0, 1)  # 1: no valid candidate; the trials say why
    report = subprocess.run(
        [*EVOTUNE, "report", "latest", "--format", "jsonl", *runs], check=True, capture_output=True
    )
    return [json.loads(line) for line in report.stdout.splitlines()]


def failures(trials: Sequence[Json], allowed: Sequence[str] = ("ok",)) -> list[Json]:
    found = [(t["outcome"], t["reason"], t["configuration"]) for t in trials]
    return [each for each in found if each[0] not in allowed]
