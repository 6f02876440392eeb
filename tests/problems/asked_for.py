"""Cases of attention with every feature, and of packed and paged sequences."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet

from evotune.problems import create_problem
from evotune.problems.attention import Attention
from evotune.trial import Value

SHAPE: dict[str, Value] = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
LENGTHS: dict[str, Value] = {"seq_len_q": 5, "seq_len_k": 9}
FEATURES: dict[str, dict[str, Value]] = {
    "plain": {"causal": False},
    "causal": {"causal": True},
    "bottom right": {"causal": True, "alignment": "bottom_right"},
    "window": {"causal": True, "alignment": "bottom_right", "window_left": 3},
    "two windows": {"causal": False, "window_left": 2, "window_right": 1},
    "softcap": {"causal": False, "softcap": 5.0},
    "alibi": {"causal": True, "alibi": True},
    "sinks": {"causal": True, "alignment": "bottom_right", "sinks": True, "window_left": 4},
    "lse": {"causal": True, "lse": True, "softcap": 3.0, "alibi": True},
    "score_mod": {
        "causal": False,
        "score_mod": "score - 0.01 * abs(row - column) if head % 2 == 0 else min(score, 4)",
    },
    "score_mod of numbers": {"causal": True, "score_mod": "2 if true or score > 1 else 0.5"},
}
PACKED: dict[str, Value] = {
    **{"sequences": 4, "heads": 4, "kv_heads": 2, "tokens_q": 30, "tokens_k": 60},
    **{"longest_q": 17, "longest_k": 40, "head_dim": 16},
}
PAGES: dict[str, Value] = {
    **{"sequences": 3, "queries": 3, "heads": 4, "kv_heads": 2, "longest": 37, "page_size": 8},
    "head_dim": 16,
}


def cases(dtype: str) -> list[ParameterSet]:
    """Problems and cases with all that attention may be asked for."""
    found = []
    for name, told in FEATURES.items():
        variant = {"causal": told["causal"]}
        rest = {key: value for key, value in told.items() if key != "causal"}
        case = Attention(dtype).case({**SHAPE, **LENGTHS, **rest}, variant)
        found.append(pytest.param("attention", case, id=name))
    for name, shape in (("attention_varlen", PACKED), ("attention_paged", PAGES)):
        for causal in (False, True):
            case = create_problem(name, dtype).case(shape, {"causal": causal})
            found.append(pytest.param(name, case, id=f"{name} {causal=}"))
    return found
