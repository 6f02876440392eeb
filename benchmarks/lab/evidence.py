"""Prints all evidence of a space's default configuration at its first timed case.

    python benchmarks/lab/evidence.py SPACE [--device auto] [--configuration NAME=VALUE ...]
        [--baseline NAME] [-o FILE]
    python benchmarks/lab/evidence.py --record RECORD [--only NAME ...] [-o FILE]

SPACE is a shipped space's name or a file; DEVICE may be a GPU that is not here (`h200`): then the
ceilings are a model and there are no counters. With --baseline also that baseline's kernels are
counted (attention: flash, cudnn, efficient, math, unfused). RECORD is a file of
`attention_cuda.py`: then the evidence is that of its champions. FILE gets everything as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from attention_cuda import JOBS_BY_NAME, load
from tuning import ROOT, derive

from evotune.backends import registry
from evotune.backends.base.evidence import BaselineRequest, Evidence, EvidenceRequest
from evotune.backends.base.launch import Binary
from evotune.runs.setup import KernelSetup, load_kernel_setup
from evotune.trial import Configuration, Value
from evotune.workers.build_cache import BuildCache, default_cache_dir
from evotune.workers.compile_worker import build
from evotune.workers.executor import TIMED, CaseJob

_COMPILE_S = 120.0


def first_case(setup: KernelSetup, changes: Mapping[str, Value]) -> CaseJob:
    """The first timed case of the default with these values changed."""
    values = {**setup.planner.bound.default(), **changes}
    proposal = setup.planner.proposal(0, Configuration(values))
    if proposal.rejection:
        sys.exit(f"the configuration is rejected: {proposal.rejection}")
    return next(item for item in proposal.cases if item.role == TIMED)


def request_for(setup: KernelSetup, item: CaseJob, folder: Path) -> EvidenceRequest:
    """The request for the case's evidence; the case is compiled, in `folder`."""
    binary = build(item.compile, BuildCache(default_cache_dir()), folder, _COMPILE_S)
    if not isinstance(binary, Binary):
        sys.exit(f"the default does not compile: {binary.reason}")
    return EvidenceRequest(
        profile=setup.profile,
        dtype=setup.problem_spec.dtype,
        binary=binary.path,
        plan=item.plan.completed(binary.resources),
        tensors=tuple(setup.planner.problem.tensors(item.case)),
        resources=binary.resources,
        compile=item.compile,
    )


def lines(title: str, evidence: Evidence) -> Iterator[str]:
    """The evidence as a person reads it."""
    yield f"{title} on {evidence.device}"
    ceilings = evidence.ceilings
    yield f"  ceilings ({ceilings.kind})"
    for name in ceilings.__struct_fields__:
        value = getattr(ceilings, name)
        if isinstance(value, float):
            yield f"    {name:20} {value:.4g}"
    yield from (f"    {note}" for note in ceilings.notes)
    for launch in evidence.launches:
        yield (
            f"  {launch.kernel}: {launch.blocks} blocks of {launch.threads} threads, "
            f"{launch.shared_bytes} bytes of shared memory"
        )
        for part in ("occupancy", "static", "counters"):
            found = getattr(launch, part)
            if found is None:
                continue
            yield f"    {part}"
            for name in found.__struct_fields__:
                yield f"      {name:26} {_text(getattr(found, name))}"
    for part, reason in evidence.unavailable.items():
        yield f"  no {part}: {reason}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        ordered = sorted(value.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {_text(each)}" for name, each in ordered)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def space_file(name: str) -> Path:
    shipped = ROOT / "search_spaces" / f"{name.replace('-', '_')}.yaml"
    return shipped if shipped.is_file() else Path(name)


def pairs(texts: list[str]) -> dict[str, Value]:
    split = (text.partition("=") for text in texts)
    return {name: yaml.safe_load(value) for name, _, value in split}


def of_space(options: argparse.Namespace) -> Iterator[tuple[str, Evidence]]:
    """The evidence of the space's default, and of the baseline that was asked for."""
    setup = load_kernel_setup(space_file(options.space), options.device, compile_only=True)
    backend = registry.named(setup.profile.backend)
    item = first_case(setup, pairs(options.configuration))
    with tempfile.TemporaryDirectory() as folder:
        request = request_for(setup, item, Path(folder))
        yield f"{item.case.label}, candidate", backend.gather_evidence(request)
    if options.baseline:
        wanted = BaselineRequest(
            profile=setup.profile,
            problem=setup.problem_spec.name,
            dtype=setup.problem_spec.dtype,
            root=str(setup.root),
            case=item.case,
            baseline=options.baseline,
        )
        found = backend.gather_baseline_evidence(wanted)
        yield f"{item.case.label}, {options.baseline}", found


def of_champions(options: argparse.Namespace) -> Iterator[tuple[str, Evidence]]:
    """The evidence of the record's champions. A parameter that is newer than a champion has no
    effect at its default."""
    for name, record in load(options.record).items():
        if options.only and name not in options.only:
            continue
        job = JOBS_BY_NAME[name]
        with tempfile.TemporaryDirectory() as folder:
            space = derive(job.space, {"problem": job.problem()}, Path(folder) / "space.yaml")
            setup = load_kernel_setup(space, options.device, compile_only=True)
            item = first_case(setup, record["configuration"])
            request = request_for(setup, item, Path(folder))
            yield name, registry.named(setup.profile.backend).gather_evidence(request)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("space", nargs="?")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--configuration", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--baseline")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(JOBS_BY_NAME))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if (options.space is None) == (options.record is None):
        parser.error("give a SPACE or a --record")
    found: dict[str, Evidence] = {}
    started = time.monotonic()
    for title, evidence in (of_space if options.space else of_champions)(options):
        found[title] = evidence
        print("\n".join(lines(title, evidence)), flush=True)
    print(f"gathered in {time.monotonic() - started:.1f} s")
    if options.output:
        data = {
            "command": f"python benchmarks/lab/evidence.py {' '.join(sys.argv[1:])}",
            "evidence": {title: each.to_json() for title, each in found.items()},
        }
        options.output.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
