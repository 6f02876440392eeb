"""Runs to export: tuned here in seconds, or fabricated for a GPU that is not here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from evotune.backends.base.launch import Binary
from evotune.runs.compiling import build_jobs
from evotune.runs.environment import describe
from evotune.runs.folder import RunFolder, create_folder
from evotune.runs.given_cases import GIVEN_CASES
from evotune.runs.setup import KernelSetup, load_setup
from evotune.runs.spaces import fingerprints, snapshot
from evotune.space.reading.case_file import CaseEntry
from evotune.store import RunStore
from evotune.trial import (
    Check,
    Configuration,
    Json,
    Measurement,
    Outcome,
    OutcomeKind,
    Trial,
    Value,
)
from evotune.verify.kept_checks import checked_domain
from evotune.workers.executor import HELD_OUT, TIMED, Proposal
from evotune.workers.in_flight import InFlight
from tests.runs.runs import brief_confirmations, run_here

ROOT = Path(__file__).parents[2]
TINY_SHAPES = {
    "attention-cpu": "shapes: [{batch: 1, heads: 2, seq_len: 64, head_dim: 32}]",
    "softmax-cpu": "shapes: [{rows: 16, columns: 64}]",
    "attention-varlen-cpu": "shapes: [{sequences: 5, heads: 4, kv_heads: 2, tokens_q: 70, "
    "tokens_k: 90, longest_q: 30, longest_k: 40, head_dim: 32}]",
    "attention-paged-cpu": "shapes: [{sequences: 4, queries: 2, heads: 4, kv_heads: 2, "
    "longest: 70, page_size: 16, head_dim: 32}]",
    "attention-features-cpu": "shapes: [{batch: 1, heads: 4, kv_heads: 2, seq_len: 64, "
    "head_dim: 32, value_dim: 16}]",
    "attention-masks-cpu": "shapes: [{batch: 2, heads: 4, kv_heads: 2, seq_len: 64, head_dim: 32}, "
    "{batch: 2, heads: 4, seq_len: 64, head_dim: 32}]",
}
TINY_HELD_OUT = {
    "attention-cpu": "held_out: [{batch: 2, heads: 2, seq_len: 60, head_dim: 32}]",
    "softmax-cpu": "held_out: [{rows: 15, columns: 60}]",
    "attention-features-cpu": "held_out: [{batch: 1, heads: 4, kv_heads: 2, seq_len_q: 20, "
    "seq_len_k: 60, head_dim: 32, value_dim: 16}]",
}


PROBLEM = """
from evotune.problems import UserProblem


class {name}(UserProblem):
    sizes = ("rows", "columns")
    constants = {{"factor": 2.0}}
    ranges = {{"factor": (0.5, 4.0)}}

    def inputs(self, rows, columns):
        return {{"x": {x}}}

    def outputs(self, rows, columns):
        return {{"out": (rows, columns)}}

    def operations(self, rows, columns):
        return rows * columns

    def compute(self, x, factor):
        return {{"out": factor * x[: x.shape[0], :]}}
{more}
"""
SPACE = """
name: scaled
root: .
problem:
  name: problem.py:{name}
  dtype: float32
  shapes: [{{rows: 8, columns: {columns}}}]
  held_out: [{{rows: 16, columns: {held_out}}}]
kernels:
  scale: {{source: scale.cpp, entry: scale, arguments: [x, out, factor, rows, columns]}}
parameters: {{UNROLL: [1, 2]}}
baseline: torch:best
"""
KERNEL = """
extern "C" void scale(const float* x, float* out, float factor, int rows, int columns) {
  for (int i = 0; i < rows * columns; ++i) out[i] = factor * x[i];
}
"""


def own_problem(
    folder: Path,
    *,
    name: str = "Scaled",
    x: str = "(rows, columns)",
    more: str = "",
    columns: int = 64,
    speedup: float = 1.25,
) -> RunFolder:
    """A run of a problem in a file of its own: out = factor * x."""
    (folder / "problem.py").write_text(PROBLEM.format(name=name, x=x, more=more))
    held_out = columns if "fixed" in more else columns // 2
    (folder / "space.yaml").write_text(SPACE.format(name=name, columns=columns, held_out=held_out))
    (folder / "scale.cpp").write_text(KERNEL)
    return fabricated(folder / "space.yaml", folder, speedup=speedup)


def words_of_tables(readme: str) -> set[str]:
    """The columns of the tables of regions, but for the kernel."""
    heads = re.findall(r"^\| kernel \| (?!case)(.*) \|$", readme, re.M)
    return {name for head in heads for name in head.split(" | ")}


def explained_words(readme: str) -> set[str]:
    """The words that a line of a list explains."""
    lines = re.findall(r"^- (`.*?`): ", readme, re.M)
    return {name for line in lines for name in re.findall("`(.*?)`", line)}


def tiny_space(name: str, folder: Path) -> Path:
    """A shipped space on tiny shapes."""
    text = (ROOT / "search_spaces" / f"{name.replace('-', '_')}.yaml").read_text()
    lines = []
    for line in text.splitlines():
        if line.startswith("  shapes:"):
            lines.append(f"  {TINY_SHAPES[name]}")
        elif line.startswith("  held_out:"):
            lines.append(f"  {TINY_HELD_OUT[name]}")
        else:
            lines.append(line)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "space.yaml"
    path.write_text("\n".join([*lines, f"root: {ROOT}", ""]))
    return path


def tuned(name: str, folder: Path) -> RunFolder:
    """A run of one trial, which is confirmed. Its times are what they are on this machine;
    made up ones take their place, so that the same cases win everywhere."""
    with brief_confirmations():
        run = run_here(tiny_space(name, folder), folder / "runs", trials=1, champions=1, seed=0)
    return with_speedup(run, 1.25)


def fabricated(
    space: Path,
    folder: Path,
    device: str = "cpu",
    *,
    values: Mapping[str, Value] | None = None,
    speedup: float = 1.25,
    cases: Mapping[str, float] | None = None,
    fingerprint: str = "",
    given: Sequence[CaseEntry] = (),
    facts: Mapping[str, Json] | None = None,
    confirmed: bool = True,
) -> RunFolder:
    """A finished run whose only trial is `confirmed`, without running a kernel: its machine code is
    compiled, its times are made up, and its domain is all that a confirmation would try.

    `values` change the space's default, `cases` have their own speedups, `fingerprint` takes the
    place of the machine code's. `given` cases take the place of the space's.
    """
    setup = load_setup(space, device, compile_only=True, secret="5ec2e7", cases=given)
    assert isinstance(setup, KernelSetup)
    configuration = Configuration({**setup.space.default(), **(values or {})})
    run = create_folder(folder / "runs", setup.name)
    snapshot(run, setup.files)
    described = describe(setup.profile, (), setup.languages)
    run.environment.write_text(json.dumps(described))
    planner = setup.planner
    searched = planner.proposal(0, configuration)
    checked = planner.proposal(0, configuration, confirm=True)
    assert not checked.rejection, checked.rejection
    jobs = [*searched.compile_jobs.values(), *checked.compile_jobs.values()]
    binaries = {}
    for key, result in build_jobs(jobs, 300.0).items():
        assert isinstance(result, Binary), result
        binaries[key] = result
    inside = [(binaries[job.compile.key].path, job.case) for job in checked.cases]
    trial = _measured(searched, binaries, speedup, cases or {})
    champion = msgspec.structs.replace(
        _measured(checked, binaries, speedup, cases or {}),
        domain=checked_domain(planner.problem, inside, setup.profile),
        checks=(Check(checked.cases[0].case.label, "normal", "passed", 0.1, 1.0, 0.1, 0.6),),
    )
    if fingerprint:
        trial = msgspec.structs.replace(trial, binary=fingerprint)
        champion = msgspec.structs.replace(champion, binary=fingerprint)
    with RunStore.create(
        run.store,
        {
            "space": setup.name,
            "space_file": setup.space_file,
            "environment": described,
            "kind": setup.kind,
            "device": setup.profile.to_json(),
            "problem": dict(setup.problem_facts),
            "settings": setup.options.to_json(),
            "default": setup.space.default().to_json(),
            "created": "2030-01-02T03:04:05+00:00",
            "command": ["evotune", "run", "/home/somebody/space.yaml"],
            "state": "finished:trials",
            "secret": "5ec2e7",
            "baselines": {"chosen": {}, "timings": []},
            "sources": fingerprints(run),
            GIVEN_CASES: msgspec.to_builtins(setup.problem_spec.cases),
            **(facts or {}),
        },
    ) as store:
        store.append(Trial(0, configuration, trial), 1.0)
        if confirmed:
            store.confirm(0, champion, 2.0)
    return run


def _measured(
    proposal: Proposal, binaries: Mapping[str, Binary], speedup: float, cases: Mapping[str, float]
) -> Outcome:
    flight = InFlight(proposal, dict(binaries))
    flight.review()
    measurements = tuple(
        Measurement(job.case.label, 8.0, 7.9, "sdpa:flash", 10.0, 1.25, 1.24, 1.26, 20,
                    held_out=job.role == HELD_OUT)
        for job in proposal.cases
        if job.role in (TIMED, HELD_OUT)
    )  # fmt: skip
    outcome = Outcome(
        OutcomeKind.OK,
        fitness=math.log(speedup),
        fitness_low=math.log(speedup * 0.98),
        fitness_high=math.log(speedup * 1.02),
        measurements=measurements,
        binary=flight.fingerprint,
    )
    return faster(outcome, speedup, cases)


def with_speedup(
    run: RunFolder, speedup: float, cases: Mapping[str, float] | None = None
) -> RunFolder:
    """Writes another speedup into the confirmations; `cases` have their own."""
    with RunStore.open_for_writing(run.store) as store:
        for number, outcome in store.confirmations().items():
            store.confirm(number, faster(outcome, speedup, cases or {}), 100.0)
    return run


def faster(outcome: Outcome, speedup: float, cases: Mapping[str, float]) -> Outcome:
    measurements = []
    for each in outcome.measurements:
        own = cases.get(each.case, speedup)
        measurements.append(
            msgspec.structs.replace(
                each, speedup=own, speedup_low=own * 0.98, speedup_high=own * 1.02
            )
        )
    return msgspec.structs.replace(outcome, measurements=tuple(measurements), flags=())
