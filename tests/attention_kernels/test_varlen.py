"""attention_varlen.cu on a CPU model of a warp's instructions; needs no GPU."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from evotune.trial import Value
from tests.shipped_kernels.emulation import EmulatedKernel, ModelComplaint

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

Values = Mapping[str, Value]
ROWS: Values = {
    **{"BLOCK_M": 32, "BLOCK_N": 32, "WARPS_Q": 2, "STAGES": 2, "V_WAIT": "late"},
    **{"TILE_ORDER": "by_row", "MIN_CTAS": 1, "KV_ORDER": "forward"},
}
DESCENDING: Values = {**ROWS, "TILE_ORDER": "by_row_descending", "KV_ORDER": "reverse", "STAGES": 1}
LEVELS: Values = {**ROWS, "TILE_ORDER": "by_level", "WARPS_Q": 1, "SHARE_QK_SMEM": True}
SHORT: Values = {
    **{"sequences": 6, "heads": 4, "kv_heads": 2, "tokens_q": 180, "tokens_k": 240},
    **{"longest_q": 70, "longest_k": 90, "head_dim": 32},
}
FEW_KEYS: Values = {  # most sequences with rows have no keys
    **{"sequences": 9, "heads": 4, "kv_heads": 2, "tokens_q": 400, "tokens_k": 100},
    **{"longest_q": 70, "longest_k": 90, "head_dim": 32},
}
MANY: Values = {
    **{"sequences": 41, "heads": 2, "kv_heads": 1, "tokens_q": 200, "tokens_k": 300},
    **{"longest_q": 65, "longest_k": 66, "head_dim": 32},
}


def share(
    folder: Path,
    values: Values,
    shape: Values,
    *,
    causal: bool = True,
    mistakes: Mapping[str, str] | None = None,
) -> float:
    kernel = EmulatedKernel(
        *(folder, "attention_varlen", values, "float16"),
        variant={"causal": causal},
        mistakes=mistakes,
    )
    return max(kernel.share_of_tolerance(shape, "needle", seed) for seed in range(2))


@pytest.mark.parametrize(
    ("values", "shape", "causal"),
    [
        (LEVELS, SHORT, True),
        pytest.param({**ROWS, "PACK_GQA": True}, MANY, True, marks=pytest.mark.soak),
        pytest.param({**LEVELS, "PACK_GQA": True}, MANY, True, marks=pytest.mark.soak),
        pytest.param(DESCENDING, SHORT, True, marks=pytest.mark.soak),
        pytest.param(ROWS, MANY, False, marks=pytest.mark.soak),
    ],
)
def test_every_row_of_every_sequence_is_right(
    values: Values, shape: Values, causal: bool, tmp_path: Path
) -> None:
    assert share(tmp_path, values, shape, causal=causal) <= 1


def test_rows_without_keys_are_0_when_a_warp_is_late(tmp_path: Path) -> None:
    values = {**ROWS, "Q_IN_REGS": False}
    assert share(tmp_path, values, FEW_KEYS, causal=False) <= 1


@pytest.mark.soak
@pytest.mark.parametrize(
    ("values", "right", "wrong"),
    [
        (ROWS, "BLOCK_M + here <= number", "BLOCK_M + here < number"),
        (LEVELS, "from_level(all, low + 1);", "from_level(all, low);"),
        (LEVELS, "for (; left > 0; --left) which &= which - 1;", ""),
        (ROWS, "problem.seq_len_k - problem.seq_len_q + 1 + position(row)", "1 + position(row)"),
        (ROWS, "PACK_GQA ? head : head / problem.group", "head"),
        (ROWS, "k + first_k * keys_row", "k + first_q * keys_row"),
    ],
)
def test_a_mistake_shows(values: Values, right: str, wrong: str, tmp_path: Path) -> None:
    try:
        found = share(tmp_path, values, SHORT, mistakes={right: wrong})
    except ModelComplaint:
        return
    assert found > 1
