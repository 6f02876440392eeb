"""3_mma.cu with the features of attention on the CPU model of a warp; needs no GPU.

`make test` runs one case, `make soak` every feature, mistakes that must show, and random
configurations of random features, sizes, and lengths.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evotune.trial import Value
from evotune.workers.executor import CaseJob

from .features_on_the_cpu import (
    Values,
    depends_on_shared_memory,
    planned,
    small_jobs,
    wrong_outputs,
)
from .warps import emulation

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SHORT: Values = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 40, "head_dim": 32}
LATE: Values = {
    **{"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 7, "seq_len_k": 97, "head_dim": 32},
}
RIGHT: Values = {"alignment": "bottom_right", "causal": True}
BASE: Values = {
    **{"BLOCK_M": 32, "BLOCK_N": 32, "WARPS_Q": 2, "WARPS_KV": 1, "STAGES": 2, "V_WAIT": "late"},
    **{"Q_IN_REGS": False, "SKIP_MASKED": True, "RESCALE_LOG2": 0, "SPLIT_KV": 1, "MIN_CTAS": 1},
}
SPLIT: Values = {**BASE, "BLOCK_M": 16, "WARPS_Q": 1, "SPLIT_KV": 3, "PACK_GQA": True}
TWO: Values = {**BASE, "BLOCK_M": 16, "WARPS_Q": 1, "WARPS_KV": 2, "KV_ORDER": "reverse"}
MOD = "score - 0.1 * abs(row - column) if head % 2 == 0 else score / 2"
ALL: Values = {
    **{**RIGHT, "window_left": 20, "softcap": 8.0, "alibi": True, "sinks": True, "lse": True},
}
_CASES = 4
_SPACE = "attention-mma-features"


def complaints(
    folder: Path,
    shape: Values,
    variant: Values,
    values: Values,
    *,
    dtype: str = "float16",
    mistakes: Mapping[str, str] | None = None,
    count: int = _CASES,
) -> list[str]:
    """The outputs that are wrong, on the timed case and on small edge cases of the same binary."""
    jobs = small_jobs(planned(_SPACE, folder, shape, variant, dtype), values, count)
    library = emulation.build(folder, jobs[0], mistakes)
    return wrong_outputs(
        jobs, lambda job, places: emulation.launch(library, job.plan, places, seed=0)
    )


def _later(*values: object) -> Any:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("variant", "shape", "values"),
    [
        (ALL, SHORT, SPLIT),
        _later({"window_left": 7, "window_right": 3, "lse": True}, SHORT, TWO),
        _later({**RIGHT, "window_left": 9, "sinks": True}, SHORT, BASE),
        _later({**RIGHT, "window_left": 40}, LATE, TWO),
        _later({"alignment": "bottom_right", "window_right": 2, "sinks": True}, LATE, SPLIT),
        _later({"softcap": 5.0, "lse": True}, SHORT, {**BASE, "RESCALE_LOG2": 4}),
        _later({**RIGHT, "alibi": True}, LATE, {**SPLIT, "MERGE": "kernel"}),
        _later({"alibi": True, "sinks": True}, SHORT, {**TWO, "RESCALE_LOG2": 8}),
        _later({"score_mod": MOD, "softcap": 5.0}, SHORT, {**BASE, "PERSISTENT": 1}),
        _later({"score_mod": MOD, "lse": True, **RIGHT}, LATE, SPLIT),
        _later({**ALL, "score_mod": MOD}, SHORT, {**SPLIT, "MERGE": "kernel"}),
    ],
)
def test_a_feature_is_right(variant: Values, shape: Values, values: Values, tmp_path: Path) -> None:
    assert not complaints(tmp_path, shape, variant, values)


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["blhd", "mixed"])
def test_views_with_narrower_values_are_right(layout: str, tmp_path: Path) -> None:
    """`blhd` has distances between rows compiled in, `mixed` has not."""
    shape = {**SHORT, "head_dim": 96, "value_dim": 32, "layout": layout}
    assert not complaints(tmp_path, shape, {"causal": True, "lse": True}, TWO, count=2)


@pytest.mark.parametrize(
    "variant",
    [{"softcap": 30.0}, _later({**ALL, "softcap": 30.0}), _later({**RIGHT, "softcap": 30.0})],
)
def test_bits_do_not_depend_on_left_overs_in_shared_memory(variant: Values, tmp_path: Path) -> None:
    """Of the second block's 32 rows 8 exist, and of a block's 64 keys 40."""
    planner = planned(_SPACE, tmp_path, SHORT, variant, "float16")
    (job,) = small_jobs(planner, {**BASE, "BLOCK_N": 64}, 1)
    library = emulation.build(tmp_path, job)

    def launch(job: CaseJob, places: Mapping[str, int], left_over: int) -> None:
        emulation.launch(library, job.plan, places, seed=0, left_over=left_over)

    assert not depends_on_shared_memory(job, planner.problem, launch)


@pytest.mark.soak
@pytest.mark.parametrize("swizzle", ["xor", "pad", "none"])
@pytest.mark.parametrize(
    ("head_dim", "value_dim"), [(80, 80), (112, 112), (192, 192), (256, 256), (192, 128), (96, 32)]
)
def test_other_head_sizes_are_right(
    head_dim: int, value_dim: int, swizzle: str, tmp_path: Path
) -> None:
    shape = {**SHORT, "head_dim": head_dim, "batch": 1}
    shape |= {"value_dim": value_dim} if value_dim != head_dim else {}
    variant = {"causal": True, "window_left": 33, "lse": True}
    values = {**TWO, "SWIZZLE": swizzle}
    assert not complaints(tmp_path, shape, variant, values, dtype="bfloat16", count=2)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong", "variant"),
    [
        ("n * 8 + e < hidden)))\n", "n * 8 + e <= hidden)))\n", {"window_left": 9}),
        ("n * 8 + 16 <= hidden", "n * 8 + 8 <= hidden", {"window_left": 9}),
        ("tile.first_seen(tile.first_row) / BLOCK_N", "1", {"window_left": 9}),
        ("key >= first_whole && ", "", {"window_left": 9}),
        ("key < end_whole", "key <= end_whole", {"window_left": 9, "causal": True}),
        ("own > window_left ? own - window_left : 0", "own", {"window_left": 9}),
        ("row + keys - queries : row", "row : row", {**RIGHT, "window_left": 9}),
        ("return BOTTOM_RIGHT ? max(end, 0) : end;", "return end + 1;", RIGHT),
        ("tile.query_head(row), change.row", "0, change.row", {"score_mod": MOD}),
        ("change.row = position", "change.row = row + 1", {"score_mod": MOD}),
        ("KeyPlace{first, further}", "KeyPlace{0, further}", {"score_mod": MOD}),
        ("kLog2e / kUnit", "1.0f", {"score_mod": MOD}),
        ("fabsf(distance - static_cast<float>(further))", "distance - further", {"alibi": True}),
        ("-slope * distance));", "slope * distance));", {**RIGHT, "alibi": True}),
        ("kUnit * of.problem", "of.problem", {"alibi": True}),
        ("2.0f * kLog2e * scale", "kLog2e * scale", {"softcap": 5.0}),
        ("-0.333206552f", "-0.3f", {"softcap": 5.0}),
        ("? 0.5f :", "? 5.0f :", {"softcap": 5.0}),
        ("kUnit * softcap", "softcap", {"softcap": 5.0}),
        ("kLog2e * problem.features.sinks[query", "problem.features.sinks[query", {"sinks": True}),
        ("ln2 * (shift + log2f(sum))", "ln2 * log2f(sum)", {"lse": True}),
        ("lse[offset<1>(row)]", "lse[row]", {"lse": True}),
    ],
)
def test_a_mistake_shows(right: str, wrong: str, variant: Values, tmp_path: Path) -> None:
    values = {**BASE, "PACK_GQA": True}
    assert complaints(tmp_path, SHORT, variant, values, mistakes={right: wrong}, count=_CASES + 2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_random_configurations_of_random_features_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    head_dim, value_dim = rng.choice([(32, 32), (64, 64), (80, 80), (128, 64), (192, 128)])
    shape: dict[str, Value] = {
        **{"batch": rng.choice((1, 2)), "heads": 4, "kv_heads": rng.choice((1, 2, 4))},
        **{"seq_len_q": rng.choice((1, 7, 40, 70)), "seq_len_k": rng.choice((40, 97, 150))},
        **{"head_dim": head_dim, "layout": rng.choice(("bhld", "bhld", "blhd"))},
    }
    shape |= {"value_dim": value_dim} if value_dim != head_dim else {}
    variant: dict[str, Value] = {"causal": rng.random() < 0.5}
    choices: dict[str, Value] = {
        **{"alignment": "bottom_right", "window_left": rng.choice((0, 1, 9, 40, 64))},
        **{"softcap": 8.0, "alibi": True, "sinks": True, "lse": True, "score_mod": MOD},
    }
    choices |= {} if variant["causal"] else {"window_right": rng.choice((0, 3, 50))}
    variant |= {name: value for name, value in choices.items() if rng.random() < 0.5}
    bound = planned(_SPACE, tmp_path, shape, variant, "float16").bound
    drawn = (dict(bound.sample(rng)) for _ in range(5000))
    values = next(
        each
        for each in drawn
        if int(each["BLOCK_M"]) <= 64
        and int(each["WARPS_Q"]) * int(each["WARPS_KV"]) <= 4
        and (each["SPLIT_KV"] == 1 or each["MERGE"] != "cluster")
    )
    dtype = rng.choice(("float16", "bfloat16"))
    assert not complaints(tmp_path, shape, variant, values, dtype=dtype, count=3)
