"""The readable kernels with the features of attention, through the gate on the CPU."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems import attention_torch, create_problem
from evotune.problems.problem import Tensors, torch_dtype
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Value
from evotune.verify.accuracy import LIMITS, errors_against, expected
from evotune.verify.gate import Gate, Verdict
from evotune.verify.pool import InputPool
from evotune.workers.executor import CaseJob
from tests.cpu_kernels import judged, loaded
from tests.sweeps import swept

from .features_on_the_cpu import planned
from .warps import emulation

SHAPE: dict[str, Value] = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 40, "head_dim": 32}
VARIANTS: dict[str, dict[str, Value]] = {
    "window and sinks": {"window_left": 9, "sinks": True, "causal": True},
    "window on both sides": {"window_left": 7, "window_right": 3, "lse": True},
    "soft cap": {"softcap": 5.0, "lse": True},
    "alibi at the bottom right": {"alignment": "bottom_right", "alibi": True, "causal": True},
    "score mod": {"score_mod": "score - 0.1 * abs(row - column) if head % 2 == 0 else score / 2"},
    "all": {
        **{"alignment": "bottom_right", "window_left": 20, "softcap": 8.0, "alibi": True},
        **{"sinks": True, "lse": True, "causal": True},
    },
}
SIZES: dict[str, dict[str, Value]] = {
    "all": {"head_dim": 80, "value_dim": 32},
    "window and sinks": {"seq_len": 60},  # some rows see nothing of a block that others see
}

pytestmark = pytest.mark.usefixtures("one_thread")


def featured(space: str, variant: str, folder: Path, **default: Value) -> Planner:
    shape = {**SHAPE, **SIZES.get(variant, {})}
    return planned(space, folder, shape, VARIANTS[variant], "float32", device="cpu", **default)


@pytest.mark.parametrize(
    "variant",
    swept(VARIANTS, lambda variant: variant in ("score mod", "all")),
)
def test_the_readable_kernel_passes_the_gate(variant: str, tmp_path: Path) -> None:
    verdict = judged(featured("attention-features-cpu", variant, tmp_path, BLOCK_N=16), tmp_path)
    assert verdict.passed, verdict.reason


LANES: dict[str, dict[str, Value]] = {
    "rows": {"K_LAYOUT": "rows", "V_LAYOUT": "rows", "LOOP_ORDER": "kv_outer"},
    "keys": {"K_LAYOUT": "panels", "V_LAYOUT": "panels", "PACK": "head", "LOOP_ORDER": "q_outer"},
}
SMALL: dict[str, Value] = {"BLOCK_M": 32, "STEP_M": 16, "BLOCK_N": 32}
SOON = (("all", "keys"),)


@pytest.mark.parametrize(
    ("variant", "lanes"),
    swept(itertools.product(VARIANTS, LANES), lambda each: each in SOON),
)
def test_the_kernel_of_simd_lanes_passes_the_gate(variant: str, lanes: str, tmp_path: Path) -> None:
    values = {**SMALL, **LANES[lanes]}
    planner = featured("attention-features-simd-cpu", variant, tmp_path, **values)
    verdict = judged(planner, tmp_path)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("lanes", swept(LANES, lambda lanes: lanes == "rows"))
def test_a_sink_of_minus_infinity_is_none(
    lanes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for rows that see nothing of their first block of keys."""
    none = torch.full((4,), -torch.inf)
    monkeypatch.setattr(attention_torch, "_sinks", lambda *_: none)
    values = {**SMALL, **LANES[lanes]}
    planner = featured("attention-features-simd-cpu", "window and sinks", tmp_path, **values)
    job = planner.proposal(0, planner.bound.default()).cases[0]
    problem = create_problem(planner.problem.name, planner.problem.dtype)
    session, verdict = CpuSession(), Verdict()
    gate = Gate(session, problem, InputPool(problem), deterministic=True)
    gate.examine(loaded(session, job, tmp_path), ("normal",), 0, verdict)
    assert verdict.passed, verdict.reason


RAGGED: dict[str, dict[str, Value]] = {
    "varlen": {
        **{"sequences": 5, "heads": 4, "kv_heads": 2, "tokens_q": 60, "tokens_k": 90},
        **{"longest_q": 20, "longest_k": 40, "head_dim": 32},
    },
    "paged": {
        **{"sequences": 4, "queries": 2, "heads": 4, "kv_heads": 2, "longest": 70},
        **{"page_size": 16, "head_dim": 32},
    },
}


@pytest.mark.parametrize("name", RAGGED)
def test_the_readable_kernels_of_ragged_sequences_pass_the_gate(name: str, tmp_path: Path) -> None:
    shipped = find_space(f"attention-{name}-cpu")
    told = yaml.safe_load(shipped.read_text())
    told["problem"]["shapes"] = [RAGGED[name]]
    told["root"] = str(shipped.parents[1])
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(told))
    planner = load_setup(path, "cpu").planner
    assert isinstance(planner, Planner)
    verdict = judged(planner, tmp_path)
    assert verdict.passed, verdict.reason


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.soak
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_readable_cuda_kernel_computes_the_features_in_the_model_of_a_warp(
    variant: str, tmp_path: Path
) -> None:
    shape = {**SHAPE, **SIZES.get(variant, {})}
    planner = planned(
        *("attention-features", tmp_path, shape, VARIANTS[variant], "float16"),
        **{"device": "l4", "BLOCK_N": 32, "WARPS": 2, "VEC_WIDTH": 4},
    )
    problem = create_problem("attention", "float16")
    cases = planner.proposal(0, planner.bound.default()).cases
    key = cases[0].compile.key
    library = emulation.build(tmp_path, cases[0])
    small = [job for job in cases if job.compile.key == key and problem.flops(job.case) < 1e6]
    assert len(small) >= 2
    for number, job in enumerate(small[:3]):
        inputs = problem.make_inputs(job.case, problem.input_kinds[number % 4], number)
        if "sinks" in inputs and number == 0:
            inputs["sinks"].fill_(-torch.inf)
        outputs = _in_child(library, job, inputs)
        reference = problem.reference(job.case, inputs)
        limits = problem.tolerances(job.case, inputs, reference)
        for name, found in outputs.items():
            wanted = expected(reference[name], limits[name], found.dtype, may_be_infinite=True)
            assert LIMITS.hold(errors_against(found, wanted)), (job.case.label, name)


def _in_child(library: Path, job: CaseJob, inputs: Tensors) -> Tensors:
    """Outputs of one launch in a child process, since the model ends its process at a mistake."""
    specs = create_problem("attention", "float16").tensors(job.case)
    memory = {name: value.share_memory_() for name, value in inputs.items()}
    for spec in specs:
        if spec.is_output:
            value = torch.empty(spec.shape, dtype=torch_dtype(spec.dtype)).share_memory_()
            memory[spec.name] = value.fill_(torch.nan)
    child = os.fork()
    if child == 0:
        addresses = {name: value.data_ptr() for name, value in memory.items()}
        emulation.launch(library, job.plan, addresses, 0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, job.case.label
    return {spec.name: memory[spec.name] for spec in specs if spec.is_output}
