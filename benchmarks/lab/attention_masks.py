"""Times attention with masks, tuned for each shape, against SDPA with the same mask, on one device.

    python benchmarks/lab/attention_masks.py [--rung mma|wgmma|cpu] [--only SHAPE ...]
        [--kinds padding bool bias] [--dtype float16|bfloat16|float32] [--trials 32] [--seed 0]
        [--minutes M] [--again] -o benchmarks/results/FILE.json
    python benchmarks/lab/attention_masks.py --table benchmarks/results/FILE.json

Masks are padding (batch, 1, 1, keys) that hides the last quarter of the keys, booleans (batch, 1,
rows, keys) that are causal and hide half of what is left at random, and a bias (1, heads, rows,
keys) in the inputs' dtype of 0.5 N(0, 1). For each the search of the rung's space, on these very
masks, has `--trials`, and begins with the configurations that FILE has for the same shape and kind
in another dtype, with recorded champions near the shape, and with the default. The best one is
checked against the float64 reference, and timed in turn with

- the fastest SDPA backend that takes the mask: `speedup`;
- the rung's kernel without a mask, tuned alike: `nothing` is the time with a mask that hides
  nothing as a share of the time without one, `half` that with padding that hides half of the keys.

Times are device time by graph replay, warm; each ratio has its 95% interval. FILE is written after
each kind, and what it has is not measured again (but with `--again`). No kind begins after
`--minutes`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from compare_kernels import SEED, build
from tuning import derive, shape_of

from evotune.backends.base.session import Sampler, Session
from evotune.portfolios.family_groups import point_in
from evotune.portfolios.near_champions import nearest_starts
from evotune.problems import create_problem
from evotune.problems.problem import Tensors
from evotune.run_options import SearchSettings
from evotune.runs.setup import KernelSetup, load_kernel_setup
from evotune.runs.starting import brought_into
from evotune.search.catalog import create_strategy
from evotune.space.specs import GivenCase
from evotune.timing.paired import (
    TimingSettings,
    measure_paired,
    places,
    time_in_turn_us,
    warm_sampler,
)
from evotune.trial import Configuration, Measurement, Outcome, OutcomeKind, Trial
from evotune.verify.accuracy import LIMITS, errors_against, expected
from evotune.verify.buffers import BufferSets
from evotune.workers.device_worker import open_session
from evotune.workers.executor import TIMED, CaseJob

KINDS = ("padding", "bool", "bias")
VARIANTS = {
    "none": {"causal": False},
    "padding": {"mask": "padding"},
    "bool": {"mask": "bool", "mask_heads": 1},
    "bias": {"mask": "bias", "mask_batch": 1},
}
RUNGS = {
    "mma": ("attention_mma_masks", "attention_mma"),
    "wgmma": ("attention_wgmma_masks", "attention_wgmma"),
    "cpu": ("attention_masks_cpu", "attention_cpu"),
}
"""The space with masks, and that without."""
SHAPES = {
    "1x8x512x64": shape_of(1, 8, 512, 64),
    "16x12x512x64": shape_of(16, 12, 512, 64),
    "1x16x1024x64": shape_of(1, 16, 1024, 64),
    "2x32x2048x128": shape_of(2, 32, 2048, 128),
    "2x2x64x32": shape_of(2, 2, 64, 32),
}
_TRY_OUT = "2x2x64x32"
"""For a look at the script on a CPU; not part of a campaign."""
_NEAR = 2
_QUICK = TimingSettings(sample_us=500.0)
_SLOW = ("sdpa:math", "unfused")
Record = dict[str, Any]


def mask_of(
    kind: str, shape: Mapping[str, int], hides: float, dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    """`hides`: of padding, the share of the keys that it hides; of booleans, whether they hide any.
    A bias is the same anyway."""
    batch, heads, length = shape["batch"], shape["heads"], shape["seq_len"]
    generator = torch.Generator(device).manual_seed(SEED)
    if kind == "padding":
        mask = torch.ones(batch, 1, 1, length, dtype=torch.uint8, device=device)
        mask[..., length - round(hides * length) :] = 0
        return mask
    if kind == "bias":
        noise = torch.randn(1, heads, length, length, generator=generator, device=device)
        return (0.5 * noise).to(dtype)
    if not hides:
        return torch.ones(batch, 1, length, length, dtype=torch.uint8, device=device)
    seen = torch.rand(batch, 1, length, length, generator=generator, device=device) < 0.5
    seen |= torch.eye(length, dtype=torch.bool, device=device)
    return seen.tril_().to(torch.uint8)


class Built(NamedTuple):
    job: CaseJob
    path: Path


@dataclass(frozen=True)
class Champion:
    """The fastest configuration of a search."""

    setup: KernelSetup
    configuration: Configuration
    built: Built


class Bench:
    def __init__(self, device: str, dtype: str, folder: Path, pool: ProcessPoolExecutor) -> None:
        self._device, self._dtype, self._folder, self._pool = device, dtype, folder, pool
        self.problem = create_problem("attention", dtype)
        self._session: Session | None = None
        self._built = 0
        self._inputs: dict[tuple[str, str, float], Tensors] = {}

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    def _setup(self, space: str, shape: Mapping[str, int], kind: str) -> KernelSetup:
        problem = {"shapes": [dict(shape)], "variants": [VARIANTS[kind]], "held_out": []}
        path = derive(
            space, {"problem": {**problem, "dtype": self._dtype}}, self._folder / f"{space}.yaml"
        )
        setup = load_kernel_setup(path, self._device)
        self._session = self._session or open_session(setup.profile)
        return setup

    def inputs(self, job: CaseJob, kind: str, hides: float) -> Tensors:
        key = (job.case.label, kind, hides)
        if key not in self._inputs:
            device = self.session.torch_device
            found = dict(self.problem.make_inputs(job.case, "normal", SEED, device))
            if kind != "none":
                symbols: Any = job.case.symbols
                shape = {name: symbols[name] for name in ("batch", "heads")}
                shape["seq_len"] = symbols["seq_len_k"]
                mask = mask_of(kind, shape, hides, found["q"].dtype, device)
                assert mask.shape == found["attn_mask"].shape
                found["attn_mask"] = mask
            self._inputs[key] = found
        return self._inputs[key]

    def free(self) -> None:
        self._inputs = {}
        self.session.free()

    def search(
        self,
        space: str,
        shape: Mapping[str, int],
        kind: str,
        *,
        trials: int,
        seed: int,
        starts: Sequence[Mapping[str, Any]],
    ) -> Champion:
        setup = self._setup(space, shape, kind)
        strategy = create_strategy("evolution", setup.space, SearchSettings(seed=seed))
        point = point_in(self.problem, GivenCase(dict(shape), dict(VARIANTS[kind])))
        near = nearest_starts(space.replace("_", "-"), self.problem, point)[:_NEAR]
        first = [brought_into(setup.space, each) for each in (*starts, *near)]
        queue = list(dict.fromkeys([each for each in first if each], setup.space.default()))
        told, best, shortest_us = 0, None, math.inf
        at_once = os.cpu_count() or 1
        while told < max(trials, len(queue)):
            batch = queue[told:]
            while len(batch) < at_once and told + len(batch) < trials:
                proposed = strategy.ask(told + len(batch), batch)
                if proposed is None:
                    break
                batch.append(proposed)
            if not batch:
                break
            for configuration, built in zip(batch, self._build(setup, batch), strict=True):
                time_us = math.inf if isinstance(built, str) else self._quick_us(built, kind)
                outcome = Outcome(OutcomeKind.COMPILE_ERROR, reason=str(built))
                if math.isfinite(time_us):
                    outcome = Outcome(OutcomeKind.OK, fitness=-math.log(time_us))
                if time_us < shortest_us and not isinstance(built, str):
                    shortest_us, best = time_us, Champion(setup, configuration, built)
                strategy.tell(Trial(told, configuration, outcome))
                told += 1
        assert best is not None, "no configuration compiles"
        print(f"  {kind}: {told} trials, {shortest_us:.2f} us", file=sys.stderr, flush=True)
        return best

    def _build(self, setup: KernelSetup, batch: Sequence[Configuration]) -> Iterator[Built | str]:
        """Each one's timed job and binary, or why there is none."""
        made = []
        for configuration in batch:
            proposal = setup.planner.proposal(0, configuration)
            if proposal.rejection:
                made.append(proposal.rejection)
                continue
            job = next(case for case in proposal.cases if case.role == TIMED)
            self._built += 1
            path = self._folder / f"{self._built}.bin"
            made.append((job, path, self._pool.submit(build, job.compile, path)))
        for each in made:
            if isinstance(each, str):
                yield each
                continue
            job, path, future = each
            try:
                future.result()
            except AssertionError as error:
                yield str(error)[:200]
                continue
            yield Built(job, path)

    def _quick_us(self, built: Built, kind: str) -> float:
        inputs = self.inputs(built.job, kind, 0.25)
        with Placed(self, built, inputs, _QUICK, most=1) as sampler:
            return min(sampler.time_us() for _ in range(5))

    def judge(self, champion: Champion, kind: str) -> None:
        """Raises AssertionError for a wrong result."""
        job = champion.built.job
        inputs = self.inputs(job, kind, 0.25)
        with Placed(self, champion.built, inputs, _QUICK, most=1) as sampler:
            sampler.run()
            self.session.synchronize()
            found = sampler.outputs()["out"]
            reference = self.problem.reference(job.case, inputs)
            limits = self.problem.tolerances(job.case, inputs, reference)
            wanted = expected(reference["out"], limits["out"], found.dtype)
            errors = errors_against(found, wanted)
            assert LIMITS.hold(errors), f"{job.case.label}: wrong by {errors}"

    def against_sdpa(self, champion: Champion, kind: str) -> Record:
        inputs = self.inputs(champion.built.job, kind, 0.25)
        settings = TimingSettings.thorough()
        calls = self.problem.baselines(champion.built.job.case, inputs)
        samplers = {
            name: warm_sampler(self.session, [call], settings, graphs=4)
            for name, call in calls.items()
            if name not in _SLOW
        }
        times_us = time_in_turn_us(samplers)
        fastest = min(times_us, key=times_us.__getitem__)
        with Placed(self, champion.built, inputs, settings) as own:
            found = self._paired(own, samplers[fastest], fastest)
        return {"sdpa_us": times_us, "sdpa": fastest, "speedup": ratio_of(found)}

    def against_plain(self, champion: Champion, plain: Champion, kind: str, hides: float) -> Record:
        settings = TimingSettings.thorough()
        inputs = self.inputs(champion.built.job, kind, hides)
        without = self.inputs(plain.built.job, "none", 0.0)
        with (
            Placed(self, plain.built, without, settings) as one,
            Placed(self, champion.built, inputs, settings) as other,
        ):
            return ratio_of(self._paired(one, other, "with a mask"))

    def _paired(self, candidate: Sampler, baseline: Sampler, name: str) -> Measurement:
        return measure_paired(
            candidate,
            baseline,
            case="",
            baseline_name=name,
            settings=TimingSettings.thorough(),
            state=self.session.state,
        )


class Placed:
    """A kernel's launches on sets of buffers, timed."""

    def __init__(
        self,
        bench: Bench,
        built: Built,
        inputs: Tensors,
        settings: TimingSettings,
        *,
        most: int = 8,
    ) -> None:
        """`most`: sets of buffers, and graphs."""
        (job, path), session, plan = built, bench.session, built.job.plan
        specs = bench.problem.tensors(job.case)
        nbytes = sum(spec.nbytes for spec in specs) + sum(w.bytes for w in plan.workspaces)
        given = {spec.name: inputs[spec.name] for spec in specs if not spec.is_output}
        count = places(session, nbytes, most)
        self._buffers = BufferSets(specs, plan, [given] * count, session.torch_device)
        kernel = session.load(path, plan)
        calls: list[Callable[[], object]] = [
            session.bind(kernel, plan, self._buffers.pointers(place)) for place in range(count)
        ]
        self._sampler = warm_sampler(session, calls, settings, graphs=most)

    def __enter__(self) -> Placed:
        return self

    def __exit__(self, *_: object) -> None:
        del self._sampler, self._buffers

    def run(self) -> None:
        self._sampler.run()

    def time_us(self) -> float:
        return self._sampler.time_us()

    def outputs(self) -> Tensors:
        return {name: output[0] for name, output in self._buffers.outputs().items()}


def ratio_of(found: Measurement) -> Record:
    """The second side's time as a share of the first one's."""
    return {
        "ratio": found.speedup,
        "low": found.speedup_low,
        "high": found.speedup_high,
        "us": [found.time_us, found.baseline_us],
        "throttled": found.throttled,
    }


def key(record: Record) -> tuple[str, str, str, str]:
    return record["rung"], record["shape"], record["kind"], record["dtype"]


class RecordFile:
    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.data: Record = json.loads(path.read_text()) if path and path.exists() else {}
        self.records: list[Record] = self.data.get("records", [])

    def configurations(
        self, rung: str, shape: str, name: str, kind: str = ""
    ) -> list[Mapping[str, Any]]:
        """Those that the records of the shape, and of the kind if it is given, have by a name."""
        wanted = (rung, shape, kind) if kind else (rung, shape)
        found = [each[name] for each in self.records if key(each)[: len(wanted)] == wanted]
        return [each for number, each in enumerate(found) if each not in found[:number]]

    def has(self, wanted: tuple[str, str, str, str]) -> bool:
        return any(key(record) == wanted for record in self.records)

    def keep(self, record: Record) -> None:
        self.records = [each for each in self.records if key(each) != key(record)] + [record]
        if self._path is not None:
            command = " ".join(["python benchmarks/lab/attention_masks.py", *sys.argv[1:]])
            self.data = {**self.data, "command": command, "records": self.records}
            self._path.write_text(json.dumps(self.data, indent=1) + "\n")


def campaign(file: RecordFile, options: argparse.Namespace, folder: Path) -> None:
    ends_s = time.monotonic() + 60 * options.minutes
    masked, plain_space = RUNGS[options.rung]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        bench = Bench(options.device, options.dtype, folder, pool)
        for name in options.only:
            shape, plain = SHAPES[name], None
            print(f"{options.rung}, {name}, {options.dtype}", file=sys.stderr, flush=True)
            for kind in options.kinds:
                wanted = (options.rung, name, kind, options.dtype)
                if (file.has(wanted) and not options.again) or time.monotonic() > ends_s:
                    continue
                start = time.monotonic()
                search = {"trials": options.trials, "seed": options.seed}
                if plain is None:
                    known = file.configurations(options.rung, name, "plain_configuration")
                    plain = bench.search(plain_space, shape, "none", **search, starts=known)
                known = file.configurations(options.rung, name, "configuration", kind)
                champion = bench.search(masked, shape, kind, **search, starts=known)
                bench.judge(champion, kind)
                measured = bench.against_sdpa(champion, kind)
                measured["nothing"] = bench.against_plain(champion, plain, kind, 0.0)
                if kind == "padding":
                    measured["half"] = bench.against_plain(champion, plain, kind, 0.5)
                bench.free()
                about = dict(zip(("rung", "shape", "kind", "dtype"), wanted, strict=True))
                now = datetime.now(UTC).isoformat(timespec="seconds")
                device = {"device": champion.setup.profile.name, "torch": torch.__version__}
                about |= {"trials": options.trials, "seed": options.seed, "date": now, **device}
                about |= {"seconds": round(time.monotonic() - start, 1)}
                configurations = {
                    "configuration": dict(champion.configuration),
                    "plain_configuration": dict(plain.configuration),
                }
                file.keep({**about, **measured, **configurations})
                print("\n".join(table([file.records[-1]])[2:]), flush=True)


def table(records: Sequence[Record]) -> list[str]:
    def interval(found: Record | None) -> str:
        if not found:
            return ""
        return f"{found['ratio']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"

    lines = ["| rung, shape, mask, dtype | SDPA µs | evotune µs | speedup | nothing | half |"]
    lines.append("|---|---|---|---|---|---|")
    for record in records:
        us, sdpa_us = record["speedup"]["us"]
        lines.append(
            f"| {', '.join(key(record))} | {record['sdpa']} {sdpa_us:.1f} | {us:.1f} "
            f"| {interval(record['speedup'])} | {interval(record.get('nothing'))} "
            f"| {interval(record.get('half'))} |"
        )
    return lines


def main() -> None:
    campaign_shapes = [name for name in SHAPES if name != _TRY_OUT]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rung", choices=RUNGS, default="mma")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=campaign_shapes)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--dtype", choices=("float16", "bfloat16", "float32"), default="float16")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    file = RecordFile(options.table or options.output)
    if not options.table:
        with tempfile.TemporaryDirectory() as folder:
            campaign(file, options, Path(folder))
    print("\n".join(table(file.records)))


if __name__ == "__main__":
    main()
