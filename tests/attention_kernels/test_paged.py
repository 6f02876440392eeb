"""attention_paged.cu on a CPU model of a warp's instructions; needs no GPU.

Copies are done by the wait that covers them, and there is NaN in their place until then: so waits
and stages are tested too, and slots without a key, which hold NaN.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from evotune.trial import Value
from tests.shipped_kernels.emulation import EmulatedKernel, ModelComplaint

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

Values = Mapping[str, Value]
SMALL: Values = {
    **{"BLOCK_M": 16, "BLOCK_N": 32, "WARPS_Q": 1, "WARPS_KV": 2, "STAGES": 3, "CTAS": 1},
    **{"OWN_COPIES": False, "MIN_TILES": 4, "MIN_CTAS": 1},
}
OWN: Values = {**SMALL, "OWN_COPIES": True, "MIN_TILES": 2}
LARGE: Values = {**SMALL, "BLOCK_M": 32, "WARPS_Q": 2, "WARPS_KV": 1, "STAGES": 2, "MIN_TILES": 1}
DECODE = {"sequences": 4, "queries": 1, "heads": 6, "kv_heads": 2, "longest": 150, "head_dim": 64}
SEVERAL = {"sequences": 3, "queries": 7, "heads": 4, "kv_heads": 1, "longest": 90, "head_dim": 32}
MANY = {"sequences": 70, "longest": 70}  # a warp adds up 32 lengths at a time


def _later(*values: object) -> ParameterSet:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


def share(
    folder: Path,
    values: Values,
    shape: Values,
    kind: str = "needle",
    *,
    causal: bool = True,
    mistakes: Mapping[str, str] | None = None,
) -> float:
    kernel = EmulatedKernel(
        *(folder, "attention_paged", values, "float16"),
        variant={"causal": causal},
        mistakes=mistakes,
    )
    return kernel.share_of_tolerance(shape, kind)


@pytest.mark.parametrize(
    ("values", "shape", "causal"),
    [
        (SMALL, {**DECODE, "page_size": 16}, True),
        _later(OWN, {**DECODE, "page_size": 1}, True),
        _later(LARGE, {**SEVERAL, "page_size": 64}, True),
        _later(OWN, {**SEVERAL, "page_size": 256, "longest": 400}, False),
        _later(SMALL, {**SEVERAL, "page_size": 5}, True),
        _later(SMALL, {**DECODE, **MANY, "page_size": 16}, True),
    ],
)
def test_every_share_of_the_keys_is_right(
    values: Values, shape: Values, causal: bool, tmp_path: Path
) -> None:
    assert share(tmp_path, values, shape, causal=causal) <= 1


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("const bool exists = key < cursor.keys", "const bool exists = true"),
        ("wait_copy_groups<STAGES - 2>();", "wait_copy_groups<STAGES - 1>();"),
        ("problem.queries + 1 + row", "problem.queries + row"),
        ("row % problem.group + head", "row % problem.group"),
        ("const unsigned first = done - cursor.tile;", "const unsigned first = done;"),
        ("static_cast<long long>(block + unit)", "static_cast<long long>(unit)"),
        ("part + p < count ?", "true ?"),
        ("pages[i * kRows / kSpan]", "pages[0]"),
        ("if (++sequence < all.count) enter(all);", "++sequence;"),
        ("(cursor.tile + 1) * BLOCK_N <= cursor.keys", "true"),
    ],
)
@pytest.mark.soak
def test_a_mistake_shows(right: str, wrong: str, tmp_path: Path) -> None:
    """Three sequences end where shares of tiles end; of five, two end within a share."""
    for sequences in (3, 5):
        shape = {**SEVERAL, "sequences": sequences, "page_size": 16}
        folder = tmp_path / str(sequences)
        folder.mkdir()
        try:
            found = share(folder, SMALL, shape, mistakes={right: wrong})
        except ModelComplaint:
            return
        if found > 1:
            return
    pytest.fail("all shares are right")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(16))
def test_random_configurations_are_right_for_random_shapes(seed: int, tmp_path: Path) -> None:
    """Groups of odd numbers of heads among them, whose rows end at any multiple of 8 bytes."""
    rng = random.Random(seed)
    kv_heads = rng.choice((1, 2, 3))
    shape: Values = {
        **{"sequences": rng.randint(1, 9), "queries": rng.choice((1, 1, 3, 4, 8))},
        **{"heads": kv_heads * rng.choice((1, 3, 4, 7)), "kv_heads": kv_heads},
        **{"longest": rng.choice((17, 130, 300)), "page_size": rng.choice((1, 5, 16, 64, 256))},
        "head_dim": rng.choice((32, 64, 128)),
    }
    bound = EmulatedKernel(tmp_path, "attention_paged", SMALL, "float16").planner(shape).bound
    drawn = (dict(bound.sample(rng)) for _ in range(5000))
    values = next(each for each in drawn if int(each["WARPS_Q"]) * int(each["WARPS_KV"]) <= 8)
    assert share(tmp_path, {**values, "CTAS": 1}, shape, causal=rng.random() < 0.5) <= 1
