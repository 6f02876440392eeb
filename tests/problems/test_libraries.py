"""Baselines of optional libraries: stand-ins record how they are called and compute with SDPA."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from evotune.problems.attention import Attention
from evotune.problems.libraries import LIBRARIES, UnusableBaseline, asked, calling
from evotune.problems.problem import Problem, Tensors
from evotune.problems.ragged_attention import PagedAttention, VarlenAttention
from tests.inductor import quick_inductor

DENSE = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 33, "head_dim": 64}
VARLEN = {
    **{"sequences": 3, "heads": 4, "kv_heads": 2, "tokens_q": 50, "tokens_k": 50},
    **{"longest_q": 30, "longest_k": 30, "head_dim": 64},
}
PAGED = {
    **{"sequences": 3, "heads": 4, "kv_heads": 2, "longest": 50, "page_size": 16, "head_dim": 64},
    "queries": 1,
}


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> torch.Tensor:
    """Attention of (length, heads, head_dim), aligned to the bottom right."""
    rows, keys = q.shape[0], k.shape[0]
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows) if causal else None
    turned = [each.transpose(0, 1)[None] for each in (q, k, v)]
    found = F.scaled_dot_product_attention(*turned, attn_mask=mask, scale=scale, enable_gqa=True)
    return found[0].transpose(0, 1)


def packed(  # noqa: PLR0917
    q: Any, k: Any, v: Any, rows: Any, keys: Any, scale: float, causal: bool
) -> Any:
    ends = zip(rows[:-1], rows[1:], keys[:-1], keys[1:], strict=True)
    return torch.cat([attended(q[a:b], k[c:d], v[c:d], scale, causal) for a, b, c, d in ends])


class Flash(ModuleType):
    """Stands in for a FlashAttention."""

    def __init__(self) -> None:
        super().__init__("flash")
        self.asked: dict[str, Any] = {}
        self.last = torch.empty(0)

    def _found(self, out: torch.Tensor, asked: dict[str, Any]) -> torch.Tensor:
        self.asked, self.last = asked, out
        return out

    def flash_attn_func(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        assert all(each.is_contiguous() for each in (q, k, v))
        scale, causal = options["softmax_scale"], options["causal"]
        rows = [attended(*each, scale, causal) for each in zip(q, k, v, strict=True)]
        out = self._found(torch.stack(rows), {"q": q.shape, **options})
        if options.get("return_lse"):
            return out, torch.zeros(q.shape[0], q.shape[2], q.shape[1])
        return out

    def flash_attn_varlen_func(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        scale, causal = options["softmax_scale"], options["causal"]
        if "page_table" in options:
            return self.flash_attn_with_kvcache(
                q, k, v, cache_seqlens=options["seqused_k"], **options
            )
        ends = (options["cu_seqlens_q"].tolist(), options["cu_seqlens_k"].tolist())
        return self._found(packed(q, k, v, *ends, scale, causal), options), None

    def flash_attn_with_kvcache(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        rows = []
        for own, table, length in zip(
            q, options["page_table"], options["cache_seqlens"], strict=True
        ):
            keys, values = (pool[table.long()].flatten(0, 1)[:length] for pool in (k, v))
            rows.append(attended(own, keys, values, options["softmax_scale"], options["causal"]))
        return self._found(torch.stack(rows), options)


class Wrapper:
    """Stands in for FlashInfer's wrappers."""

    def __init__(self, workspace: torch.Tensor, layout: str, **options: Any) -> None:
        assert layout == "NHD"
        assert workspace.numel() >= 1 << 20
        self.planned: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}

    def plan(self, *planned: Any, **options: Any) -> None:
        self.planned, self.options = planned, options

    def run(self, q: torch.Tensor, *cache: Any) -> torch.Tensor:
        options = (self.options["sm_scale"], self.options.get("causal", False))
        if len(cache) == 2:
            return packed(q, *cache, *(each.tolist() for each in self.planned[:2]), *options)
        rest = list(self.planned)
        rows = rest.pop(0).tolist() if len(rest) == 8 else list(range(q.shape[0] + 1))
        ends, pages, last = (each.tolist() for each in rest[:3])
        size, found = rest[6], []
        for number, of_last in enumerate(last):
            mine = pages[ends[number] : ends[number + 1]]
            length = (len(mine) - 1) * size + of_last
            keys, values = (pool[mine].flatten(0, 1)[:length] for pool in cache[0])
            found.append(attended(q[rows[number] : rows[number + 1]], keys, values, *options))
        return torch.cat(found)


class FlashInfer(ModuleType):
    BatchPrefillWithRaggedKVCacheWrapper = Wrapper
    BatchPrefillWithPagedKVCacheWrapper = Wrapper
    BatchDecodeWithPagedKVCacheWrapper = Wrapper


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Flash:
    """All libraries for GPUs, on a device that they take for one."""
    from evotune.problems.libraries import flashinfer

    found = Flash()
    for name in ("fa2", "fa3", "fa4"):
        monkeypatch.setitem(sys.modules, LIBRARIES[name].module, found)
    monkeypatch.setitem(sys.modules, "flashinfer", FlashInfer("flashinfer"))
    monkeypatch.setattr(calling, "capability", lambda device: (9, 0))
    small = torch.zeros(1 << 20, dtype=torch.uint8)
    monkeypatch.setattr(flashinfer, "_workspace", lambda device: small)
    return found


def call_of(
    name: str, problem: Problem, shape: dict[str, Any], *, causal: bool = False
) -> tuple[Callable[[], Tensors], Callable[[Tensors], float]]:
    """The library's call, and a function that gives an answer's largest share of its limits."""
    case = problem.case(shape, {"causal": causal})
    inputs = problem.make_inputs(case, "normal", 0)
    reference = problem.reference(case, inputs)
    limits = problem.tolerances(case, inputs, reference)

    def share(found: Tensors) -> float:
        assert found.keys() == reference.keys()
        errors = [(found[n].double() - reference[n]).abs() / limits[n] for n in found]
        return max(float(each.max()) for each in errors)

    return problem.baselines(case, inputs, name)[name], share


def refusal(name: str, problem: Problem, shape: dict[str, Any], *, causal: bool = False) -> str:
    call, _ = call_of(name, problem, shape, causal=causal)
    with pytest.raises(UnusableBaseline) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["fa2", "fa3", "fa4", "flashinfer"])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (Attention, DENSE),
        (Attention, {**DENSE, "seq_len_k": 50, "seq_len_q": 33, "alignment": "bottom_right"}),
        (VarlenAttention, VARLEN),
        (PagedAttention, PAGED),
        (PagedAttention, {**PAGED, "queries": 3}),
    ],
)
def test_each_library_computes_what_the_reference_does(
    flash: Flash, name: str, kind: Callable[[str], Problem], shape: dict[str, Any], causal: bool
) -> None:
    if "seq_len_k" in shape:
        shape = {key: value for key, value in shape.items() if key != "seq_len"}
    if name == "fa2" and "page_size" in shape:
        assert "a multiple of 256" in refusal(name, kind("float16"), shape, causal=causal)
        return
    call, share = call_of(name, kind("float16"), shape, causal=causal)
    assert share(call()) < 1


def test_inputs_are_as_a_projection_leaves_them_and_the_output_is_no_copy(flash: Flash) -> None:
    call, _ = call_of("fa4", Attention("bfloat16"), DENSE)
    out = call()["out"]
    assert flash.asked["q"] == (2, 33, 4, 64)
    assert out.shape == (2, 4, 33, 64)
    assert out.data_ptr() == flash.last.data_ptr()


def test_features_become_the_library_s_arguments(flash: Flash) -> None:
    features = {"window_left": 7, "softcap": 5.0, "lse": True}
    call_of("fa4", Attention("float16"), {**DENSE, **features}, causal=True)[0]()
    asked = flash.asked
    assert (asked["window_size"], asked["softcap"], asked["return_lse"]) == ((7, 0), 5.0, True)
    call_of("fa4", Attention("float16"), {**DENSE, "window_right": 7})[0]()
    assert flash.asked["window_size"] == (None, 7)
    call_of("fa2", Attention("float16"), {**DENSE, "window_right": 7, "alibi": True})[0]()
    assert flash.asked["window_size"] == (-1, 7)
    assert flash.asked["alibi_slopes"].shape == (4,)


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [
        ("fa4", {"score_mod": "score + 1"}, "score modification"),
        ("fa4", {"alibi": True}, "no ALiBi"),
        ("fa3", {"sinks": True}, "no sinks"),
        ("fa4", {"head_dim": 100}, "no head_dim of 100"),
        ("fa4", {"seq_len_k": 40}, "bottom right"),
        ("flashinfer", {"lse": True}, "base 2"),
        ("flashinfer", {"head_dim": 80}, "no head sizes 80 and 80"),
    ],
)
def test_a_case_that_a_library_does_not_compute_has_the_reason(
    flash: Flash, name: str, shape: dict[str, Any], why: str
) -> None:
    sizes: dict[str, Any] = {**DENSE, **shape}
    if "seq_len_k" in shape:
        sizes["seq_len_q"] = sizes.pop("seq_len")
    assert why in refusal(name, Attention("float16"), sizes, causal=True)


def test_float32_and_a_missing_package_are_reasons(flash: Flash) -> None:
    assert refusal("fa4", Attention("float32"), DENSE) == "fa4: it has no float32"


def test_a_library_that_is_not_here_or_cannot_be_imported_is_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    found = refusal("flashinfer", Attention("float16"), DENSE)
    assert found.startswith("flashinfer: ")
    monkeypatch.setitem(sys.modules, "flash_attn_interface", Flash())
    assert refusal("fa3", Attention("float16"), DENSE) == "fa3: it needs a CUDA GPU"


def test_a_failure_at_the_first_call_is_a_reason_of_one_line(
    flash: Flash, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise AssertionError("SplitKV\nis not there " + "x" * 1000)

    monkeypatch.setattr(flash, "flash_attn_func", broken)
    found = refusal("fa4", Attention("float16"), DENSE)
    assert found.startswith("fa4: AssertionError: SplitKV is not there x")
    assert len(found) < 400


@pytest.mark.filterwarnings("default")  # those of the compiler
def test_flex_attention_computes_masks_caps_and_biases() -> None:
    features = {"window_left": 9, "softcap": 5.0, "alibi": True, "alignment": "bottom_right"}
    changed = {"score_mod": "score - 0.1 * abs(row - column) if head % 2 == 0 else max(score, -1)"}
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 33, "seq_len_k": 50}
    shape = {**sizes, "head_dim": 32, **features, **changed}
    variables = dict(os.environ)
    with quick_inductor():
        call, share = call_of("flex", Attention("float32"), shape, causal=True)
        assert share(call()) < 1
    assert dict(os.environ) == variables


def test_flex_attention_says_what_it_lacks() -> None:
    assert "dense attention only" in refusal("flex", VarlenAttention("float32"), VARLEN)


def test_libraries_are_tried_only_if_the_baseline_asks_for_them() -> None:
    assert asked("sdpa:best") == asked("unfused") == asked("torch:best") == ()
    assert asked("fa4") == ("fa4",)
    assert asked("library:best") == tuple(LIBRARIES)
    assert set(asked("best")) == LIBRARIES.keys() - {"flex"}
    problem = Attention("float32")
    case = problem.case({**DENSE, "seq_len": 4}, {})
    found = problem.baselines(case, problem.make_inputs(case, "normal", 0))
    assert not found.keys() & LIBRARIES.keys()
    assert not math.isnan(float(found["unfused"]()["out"].sum()))
