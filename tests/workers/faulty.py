"""The faulty test kernel, its space, and an executor that runs it for real."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from report.runs import make_run, ok

from evotune.backends.base.launch import Argument, CompileJob, DeviceProfile, Workspace
from evotune.runs.folder import RunFolder
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.runs.spaces import snapshot
from evotune.store import RunStore
from evotune.trial import Configuration, Outcome, Value
from evotune.workers.executor import TIMED, Proposal
from evotune.workers.local import LocalExecutor, open_local_executor
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "tests" / "data" / "faulty" / "faulty.yaml"


def space_text(name: str, more: str) -> str:
    """A space of the faulty kernel; `more` is the rest of its text, from the parameters on."""
    return f"""
name: {name}
root: {SPACE.parent}
problem:
  name: attention
  shapes: [{{batch: 1, heads: 2, seq_len: 64, head_dim: 32}}]
  variants: [{{causal: true}}]
kernels:
  faulty:
    source: kernels/faulty_attention.cpp
    entry: attention_forward
    define: [head_dim, causal]
    arguments: [q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k]
{more}"""


def run_of(space: Path, runs_dir: Path, champion: Mapping[str, Value]) -> RunFolder:
    """A run of one trial in the state after the search, made without running anything."""
    setup = load_setup(space, "cpu")
    run = make_run(
        runs_dir,
        [ok(1.0)],
        configurations={0: champion},
        meta={
            "space": setup.name,
            "device": setup.profile.to_json(),
            "baselines": {"chosen": {case.label: "sdpa:math" for case in setup.cases[TIMED]}},
        },
    )
    run.sources.mkdir()
    with RunStore.open_for_writing(run.store) as store:
        snapshot(run, setup.files)
        store.set_meta("space_file", setup.space_file)
    return run


def planner(space: Path = SPACE) -> Planner:
    made = load_setup(space, "cpu").planner
    assert made is not None
    return made


def compile_job(fault: str, space: Path = SPACE) -> CompileJob:
    return planner(space).compile_jobs(Configuration({"FAULT": fault}))[0]


def open_executor(
    folder: Path,
    *,
    problem: str = "attention",
    profile: DeviceProfile | None = None,
    **options: Any,
) -> LocalExecutor:
    setup = load_setup(SPACE, "cpu")
    executor = open_local_executor(
        folder=folder / "logs",
        cache=folder / "cache",
        profiles=[profile or setup.profile],
        problem=problem,
        dtype="float32",
        deterministic=True,
        **options,
    )
    executor.baselines = {case.label: "sdpa:math" for case in setup.cases[TIMED]}
    return executor


@dataclasses.dataclass
class Confirmed:
    """A champion's confirmation, and what the executor told meanwhile and afterwards."""

    proposal: Proposal
    outcome: Outcome
    steps: list[str]
    last_step: str


class FaultyKernels:
    """Runs one trial after the other on one executor; edge shapes are left out for speed."""

    def __init__(self, folder: Path, profile: DeviceProfile | None = None, **options: Any) -> None:
        self.folder = folder
        limits = {"compile_timeout_s": PATIENCE_S, "trial_timeout_s": PATIENCE_S}
        self.executor = open_executor(folder, profile=profile, **{**limits, **options})
        self._planner = planner()
        self._count = 0

    def proposal(self, fault: str, *workspaces: Workspace) -> Proposal:
        """A last argument that the kernel ignores keeps equal code from being a duplicate."""
        number = self._count
        self._count += 1
        made = self._planner.proposal(number, Configuration({"FAULT": fault}))
        cases = []
        for case in made.cases:
            if case.role == TIMED:
                extra = Argument("int32", value=number)
                plan = msgspec.structs.replace(
                    case.plan,
                    arguments=(*case.plan.arguments, extra),
                    workspaces=(*case.plan.workspaces, *workspaces),
                )
                cases.append(dataclasses.replace(case, plan=plan))
        return dataclasses.replace(made, cases=tuple(cases))

    def run(self, fault: str) -> Outcome:
        return self.run_proposal(self.proposal(fault))

    def run_proposal(self, proposal: Proposal, timeout_s: float = PATIENCE_S) -> Outcome:
        self.executor.submit(proposal)
        return self.outcome_of(proposal, timeout_s)

    def outcome_of(self, proposal: Proposal, timeout_s: float = PATIENCE_S) -> Outcome:
        """The outcome of a proposal that was submitted."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for number, outcome in self.executor.poll(0.5):
                assert number == proposal.number
                return outcome
        raise AssertionError(f"no outcome for {proposal} within {timeout_s} s")

    def watched(self, proposal: Proposal) -> tuple[Outcome, list[str]]:
        """The proposal's outcome, and the steps that the executor told meanwhile."""
        steps: list[str] = []
        self.executor.submit(proposal)
        while not (found := self.executor.poll(0.01)):
            steps.append(self.executor.step)
        ((number, outcome),) = found
        assert number == proposal.number
        return outcome, steps

    def device_log(self) -> str:
        log = self.folder / "logs" / "device.log"
        return log.read_text(errors="replace") if log.exists() else ""


def descendants(pid: int) -> set[int]:
    """Every living process below `pid`."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat_fields(int(entry.name))
            if fields:
                parents[int(entry.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def stat_fields(pid: int) -> list[str]:
    """State, parent, group, ... of a process that lives; empty for one that does not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] in "ZX" else fields


def wait_until_gone(pids: set[int], timeout_s: float = PATIENCE_S) -> set[int]:
    """Those of `pids` that still live after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pids = {pid for pid in pids if stat_fields(pid)}
        if not pids:
            break
        time.sleep(0.02)
    return pids


def naming(text: str) -> Iterator[str]:
    """Command lines of living processes that hold `text`, this one left out."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if text in words:
                yield words


def wait_until_unnamed(text: str, timeout_s: float = PATIENCE_S) -> list[str]:
    """Command lines that still hold `text` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (found := list(naming(text))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found
