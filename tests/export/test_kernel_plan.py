"""A configuration's launches as functions of the case are the planner's, for any configuration."""

from __future__ import annotations

import random
import shutil
from itertools import islice
from pathlib import Path

import pytest

from evotune.backends import registry
from evotune.errors import EvotuneError, SpaceError
from evotune.export.case_shapes import case_shapes
from evotune.export.kernel_plan import KernelPlan, comparable, kernel_plan
from evotune.problems.problem import Case
from evotune.runs.launches import Rejected
from evotune.runs.setup import KernelSetup, load_setup
from evotune.runs.spaces import shipped_spaces
from evotune.trial import Configuration, Value
from evotune.workers.executor import TIMED, CaseJob
from tests.sweeps import swept

CUDA = Path(__file__).parents[1] / "data" / "cuda" / "cuda.yaml"
CONSTANT = """
name: filled
problem:
  name: attention
  dtype: float16
  shapes:
    - {batch: 2, heads: 4, seq_len: 100, head_dim: 64}
    - {batch: 1, heads: 2, seq_len: 8, head_dim: 32}
kernels:
  filled:
    source: kernels/filled.cu
    entry: attention_forward
    constant_memory: {c_keys: k}
    arguments: [q, out]
    launches: [{grid: [1], block: [32]}]
parameters: {ROWS: [1, 2]}
"""
SPACES = {**shipped_spaces(), "launches": CUDA}
ALIKE = {
    *("attention-mma-features", "attention-wgmma", "attention-mma-large", "attention-mma-decode"),
    *("attention-features-simd-cpu", "attention-cpu-bf16", "attention-varlen", "attention-l4"),
    *("attention-scalar-cpu", "attention-wmma", "attention-features", "linear", "linear-gelu"),
    *("add-rms-norm", "rms-norm", "rms-norm-cpu", "softmax-cpu", "softmax"),
    *("attention-wgmma-features", "attention-tma", "attention-cpu", "matmul-cpu", "linear-mma"),
    *("attention-masks", "attention-mma-masks", "attention-wgmma-masks"),
}
"""Their launches are written as those of other spaces: soak tests."""


def folded(setup: KernelSetup, configuration: Configuration) -> KernelPlan:
    """The plan that an export would write, without compiling anything."""
    problem, planner = setup.planner.problem, setup.planner
    jobs = list(planner.proposal(0, configuration).cases)
    name = configuration.get("KERNEL")
    kernel = setup.document.kernel(None if name is None else str(name))
    if any(argument.when is not None for argument in kernel.arguments):
        edges = planner.problem.edge_cases(setup.cases[TIMED][0])
        found = (planners(setup, configuration, edge)[0] for edge in edges[:2])
        jobs += [job for job in found if job is not None]
    types = max(([a.type for a in job.plan.arguments] for job in jobs), key=len, default=[])
    scope = setup.space.case_scope(configuration, {"dtype": problem.dtype})
    limits = registry.named(setup.profile.backend).limits()
    shapes = case_shapes(problem, setup.cases[TIMED])
    return kernel_plan(
        kernel,
        scope,
        shapes=shapes.nodes(scope),
        strides=shapes.strides,
        optional=shapes.optional,
        dtypes=shapes.dtypes,
        types=types,
        constraints=setup.document.constraints,
        bounds=limits.bounds(setup.profile.attributes) if limits else None,
        static_bytes=0,
    )


def loaded(name: str) -> KernelSetup:
    before_hopper = ("attention-l4", "linear-mma", "launches")
    device = "cpu" if "-cpu" in name else "l4" if name in before_hopper else "h200"
    setup = load_setup(SPACES[name], device, compile_only=True)
    assert isinstance(setup, KernelSetup)
    return setup


def planners(
    setup: KernelSetup, configuration: Configuration, case: Case
) -> tuple[CaseJob | None, str]:
    """The planner's job on the case, or why there is none."""
    try:
        return setup.planner.case_job(configuration, case), ""
    except (Rejected, SpaceError) as error:
        return None, str(error)


@pytest.mark.parametrize("name", swept(SPACES, lambda name: name not in ALIKE))
def test_it_is_the_planners_wherever_the_planner_has_one(name: str) -> None:
    setup, rng = loaded(name), random.Random(0)
    planner, timed = setup.planner, setup.cases[TIMED]
    configurations = [setup.space.default(), *(setup.space.sample(rng) for _ in range(6))]
    planned = refused = 0
    for configuration in configurations:
        if planner.proposal(0, configuration).rejection:
            continue
        plan = folded(setup, configuration)
        drawn = islice(planner.problem.random_cases(timed, 1, ()), 40)
        for case in (*timed, *planner.problem.edge_cases(timed[0]), *drawn):
            symbols: dict[str, Value] = {n: v for n, v in case.symbols.items() if n != "dtype"}
            job, why = planners(setup, configuration, case)
            if job is None:
                # The domain rules out symbols that the kernel is not told.
                assert "does not receive" in why or not plan.holds(symbols), (case.label, why)
                refused += 1
                continue
            assert plan.holds(symbols), case.label
            assert comparable(plan.at(symbols)) == comparable(job.plan), case.label
            planned += 1
    assert planned >= 20, (planned, refused)


def test_a_launch_keeps_its_condition_where_the_case_decides(tmp_path: Path) -> None:
    text = CUDA.read_text().replace("when: SPLIT > 1", "when: seq_len_k > 64 * SPLIT")
    assert text != CUDA.read_text()
    shutil.copytree(CUDA.parent / "kernels", tmp_path / "kernels")
    path = tmp_path / "changed.yaml"
    path.write_text(text)
    setup = load_setup(path, "l4", compile_only=True)
    assert isinstance(setup, KernelSetup)
    values = {"FAULT": "none", "SPLIT": 2, "THREADS": 128, "SHARED_KIB": 0}
    plan = folded(setup, Configuration(values))
    launches = plan.to_json()["plan"]["launches"]
    assert [launch.get("when") for launch in launches] == [None, [">", {"name": "seq_len_k"}, 128]]


def test_constant_memory_follows_the_case(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "filled.cu").write_text("")
    (tmp_path / "filled.yaml").write_text(CONSTANT)
    setup = load_setup(tmp_path / "filled.yaml", "h200", compile_only=True)
    assert isinstance(setup, KernelSetup)
    plan = folded(setup, Configuration({"ROWS": 1}))
    for case in setup.cases[TIMED]:
        job = setup.planner.case_job(Configuration({"ROWS": 1}), case)
        symbols = {name: value for name, value in case.symbols.items() if name != "dtype"}
        assert plan.at(symbols) == job.plan
        assert job.plan.constant_memory
    (found,) = plan.to_json()["plan"]["constant_memory"]
    assert (found["symbol"], found["tensor"], found["bytes"][0]) == ("c_keys", "k", "*")


def test_a_condition_that_holds_nowhere_is_an_error() -> None:
    setup = loaded("attention-mma")
    broken = Configuration({**setup.space.default(), "BLOCK_M": 16})
    with pytest.raises(EvotuneError, match="holds in no case"):
        folded(setup, broken)
