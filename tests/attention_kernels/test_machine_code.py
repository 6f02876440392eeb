"""ptxas keeps each softmax of 5_wgmma.cu beside the MMA that it is to run under.

`finish_first` in wgmma/product.cuh sees to that. Without it ptxas moves the exponentials behind
the wait for that MMA, and nothing else shows it than the time.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("cupy")

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Configuration, Value
from tests.patience import PATIENCE_S

from .machine_code import EXP2, PACK, WAITS, instructions

WAIT_FOR_VALUES, WAIT_FOR_SCORES = WAITS
BLOCK_N = 96


def between_waits(
    values: Mapping[str, Value],
    folder: Path,
    *,
    causal: bool = False,
    mask: str = "",
    mistakes: Mapping[str, str] | None = None,
) -> list[dict[str, int]]:
    """For each stretch from the wait for a block's scores to the next wait, the instructions in it
    by name. `mask`: its kind. `mistakes` maps texts of wgmma/product.cuh to wrong ones."""
    space = find_space("attention-wgmma-masks" if mask else "attention-wgmma")
    planner = load_setup(space, "h200", compile_only=True).planner
    assert planner is not None
    wanted = {**planner.bound.default(), "BLOCK_N": BLOCK_N, **values}
    configuration = planner.bound.repair(wanted, random.Random(0))
    assert configuration is not None
    assert {name: configuration[name] for name in values} == values
    jobs = planner.compile_jobs(Configuration(configuration))
    wanted_macros = {"CAUSAL": causal}
    if mask:
        wanted_macros |= {"MASK_IS_PADDING": mask == "padding", "MASK_IS_BIAS": mask == "bias"}
    job = next(job for job in jobs if wanted_macros.items() <= dict(job.defines).items())
    if mistakes:
        shutil.copytree(space.parents[1] / "kernels" / "attention", folder / "kernels/attention")
        header = folder / "kernels/attention/wgmma/product.cuh"
        text = header.read_text()
        for right, wrong in mistakes.items():
            assert right in text
            text = text.replace(right, wrong)
        header.write_text(text)
        job = msgspec.structs.replace(job, root=str(folder))
    cubin = folder / "kernel.cubin"
    built = NvrtcCompiler().compile(job, cubin, timeout_s=PATIENCE_S)
    assert not isinstance(built, CompileFailure), built.reason
    found: list[dict[str, int]] = []
    inside = False
    for name, same in groupby(instructions(cubin.read_bytes(), "attention_forward")):
        if name in WAITS:
            inside = name == WAIT_FOR_SCORES
            if inside:
                found.append({})
        elif inside:
            found[-1][name] = found[-1].get(name, 0) + sum(1 for _ in same)
    return found


@pytest.mark.sweep(1)
@pytest.mark.parametrize("causal", [False, True])
def test_exponentials_run_under_the_values_of_the_block_before(
    causal: bool, tmp_path: Path
) -> None:
    """Both loops, with masks and without: a weight of each of a thread's scores, and two factors of
    its sums."""
    stretches = between_waits({}, tmp_path, causal=causal)
    assert stretches == [{EXP2: BLOCK_N // 2 + 2}] * 2


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mask", "values", "loops"),
    [
        ("padding", {}, 1),
        ("bool", {}, 1),
        ("bias", {"MASK_VIA": "shared"}, 2),
        ("bias", {"MASK_VIA": "direct"}, 2),
    ],
)
def test_with_a_mask_too(
    mask: str, values: Mapping[str, Value], loops: int, tmp_path: Path
) -> None:
    stretches = between_waits(values, tmp_path, mask=mask)
    assert stretches == [{EXP2: BLOCK_N // 2 + 2}] * loops


@pytest.mark.soak
def test_weights_are_packed_there_too_when_they_have_a_second_set(tmp_path: Path) -> None:
    """Each loop has two steps, and one more may be left over."""
    stretches = between_waits({"WEIGHT_SETS": 2}, tmp_path)
    assert len(stretches) >= 4
    for stretch in stretches:
        assert stretch == {EXP2: BLOCK_N // 2 + 2, PACK: BLOCK_N // 4}


@pytest.mark.soak
def test_without_finish_first_ptxas_moves_the_exponentials(tmp_path: Path) -> None:
    """If this fails, ptxas has become better: look whether finish_first is still needed."""
    guard = "setp.lt.f32 p, %0, 0f00000000;\\n@p st.shared.f32 [%1], %0;"
    stretches = between_waits({}, tmp_path, mistakes={guard: ""})
    assert stretches
    assert all(stretch.get(EXP2, 0) < BLOCK_N // 4 for stretch in stretches)
