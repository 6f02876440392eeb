"""Every optional library that is installed, on a few cases: right, timed and chosen.

Libraries that are not here are skipped. `EVOTUNE_LIBRARIES=fa4,flashinfer` names the ones that must
be here.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from evotune.problems.attention import Attention
from evotune.problems.libraries import LIBRARIES, UnusableBaseline, version
from evotune.problems.problem import Problem
from evotune.problems.ragged_attention import PagedAttention, VarlenAttention

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

_DENSE: dict[str, Any] = {"batch": 2, "heads": 8, "kv_heads": 2, "seq_len": 512, "head_dim": 128}
_RIGHT = {"batch": 2, "heads": 8, "seq_len_q": 100, "seq_len_k": 700, "head_dim": 64}
_VARLEN = {
    **{"sequences": 6, "heads": 8, "kv_heads": 2, "tokens_q": 1500, "tokens_k": 1500},
    **{"longest_q": 700, "longest_k": 700, "head_dim": 64},
}
_PAGED = {
    **{"sequences": 5, "heads": 32, "kv_heads": 8, "longest": 1000, "head_dim": 128},
    "queries": 1,
}
_CASES: dict[str, tuple[type[Any], dict[str, Any], bool]] = {
    "full": (Attention, _DENSE, False),
    "causal": (Attention, _DENSE, True),
    "blhd": (Attention, {**_DENSE, "layout": "blhd"}, True),
    "bottom right": (Attention, {**_RIGHT, "alignment": "bottom_right"}, True),
    "window": (Attention, {**_DENSE, "window_left": 100}, True),
    "softcap": (Attention, {**_DENSE, "softcap": 20.0}, False),
    "lse": (Attention, {**_DENSE, "lse": True}, False),
    "sinks": (Attention, {**_DENSE, "sinks": True}, True),
    "alibi": (Attention, {**_DENSE, "alibi": True}, True),
    "score_mod": (Attention, {**_DENSE, "score_mod": "score - 0.1 * abs(row - column)"}, False),
    "mla": (Attention, {**_DENSE, "kv_heads": 8, "head_dim": 192, "value_dim": 128}, True),
    "varlen": (VarlenAttention, _VARLEN, True),
    "decode": (PagedAttention, {**_PAGED, "page_size": 16}, False),
    "pages of 256": (PagedAttention, {**_PAGED, "page_size": 256}, False),
    "speculation": (PagedAttention, {**_PAGED, "page_size": 64, "queries": 4}, True),
}
_EVERY = {
    **{name: {"full", "causal", "blhd", "bottom right", "varlen"} for name in LIBRARIES},
    "flex": set(_CASES) - {"varlen", "decode", "pages of 256", "speculation", "mla"},
}
"""Cases that each library must compute where it is installed."""


@pytest.mark.parametrize("case_name", _CASES)
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_library_is_right_in_a_graph_or_says_why_not(
    name: str, case_name: str, dtype: str
) -> None:
    demanded = os.environ.get("EVOTUNE_LIBRARIES", "").split(",")
    if not version(name) and name not in demanded:
        pytest.skip(f"{LIBRARIES[name].package} is not installed")
    kind, shape, causal = _CASES[case_name]
    problem: Problem = kind(dtype)
    case = problem.case(shape, {"causal": causal})
    inputs = problem.make_inputs(case, "normal", 0, "cuda")
    call = problem.baselines(case, inputs, name)[name]
    try:
        call()
    except UnusableBaseline as error:
        if case_name in _EVERY[name]:
            raise
        pytest.skip(str(error))
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        found = call()
    graph.replay()
    torch.cuda.synchronize()
    reference = problem.reference(case, inputs)
    limits = problem.tolerances(case, inputs, reference)
    for output, value in found.items():
        share = ((value.double() - reference[output]).abs() / limits[output]).max()
        assert float(share) <= 1, f"{output} is {float(share):.2f} of its limit off"
