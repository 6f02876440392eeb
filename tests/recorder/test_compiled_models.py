"""Recordings of models under torch.compile, compiled before and meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import evotune
from evotune.recorder.calls import Calls
from tests.inductor import quick_inductor
from tests.recorder.models import HEADS, WIDTH, Attention, SelfAttention, encoder, transformers

_FUNCTION = "F.scaled_dot_product_attention"
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of inductor


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad(), quick_inductor():
        yield


def told(calls: Calls) -> Counter[str]:
    """Counts by everything that is told of a call."""
    assert not calls.undescribed
    found: Counter[str] = Counter()
    for call in calls:
        entry = call.entry
        facts = {"shape": entry.shape, "variant": entry.variant, "call": entry.call}
        found[f"{entry.problem} {entry.dtype} {facts}"] += call.count
    return found


def compiled(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(model, backend="aot_eager", fullgraph=True, **options)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_model_that_is_compiled_already_is_recorded_and_gives_the_same(backend: str) -> None:
    model, x = SelfAttention(is_causal=True).eval(), torch.randn(2, 7, WIDTH)
    fast = torch.compile(model, backend=backend)
    before = fast(x)
    with evotune.recording() as calls:
        results = [fast(x) for _ in range(3)]
    assert all(torch.equal(result, before) for result in results)
    eager = evotune.record(model, x)
    assert told(calls) == Counter({next(iter(told(eager))): 3})
    assert torch.equal(fast(x), before)
    assert calls.count == 3


def test_what_was_compiled_before_is_not_compiled_again_afterwards() -> None:
    graphs = []

    def backend(module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append([str(node.target) for node in module.graph.nodes])
        return module.forward

    fast, x = torch.compile(SelfAttention(), backend=backend), torch.randn(2, 7, WIDTH)
    fast(x)
    for _ in range(2):
        with evotune.recording() as calls:
            fast(x)
        assert calls.count == 1
        fast(x)
    assert len(graphs) == 2  # before, and once with the stand-in
    assert graphs[0] == graphs[1]


def test_a_model_compiled_meanwhile_tells_each_run() -> None:
    model, x = SelfAttention(), torch.randn(2, 7, WIDTH)
    with evotune.recording() as calls:
        fast = compiled(model)
        for _ in range(4):
            fast(x)
    assert (len(calls), calls.count) == (1, 4)


def test_open_sizes_are_told_as_each_run_has_them() -> None:
    fast = compiled(SelfAttention(), dynamic=True)
    with evotune.recording() as calls:
        for length in (7, 9, 11, 9):
            fast(torch.randn(2, length, WIDTH), torch.ones(2, 1, 1, length, dtype=torch.bool))
    found = {call.entry.shape["seq_len_q"]: (call.count, call.mask) for call in calls}
    assert found == {
        **{7: (1, "padding 2x1x1x7"), 9: (2, "padding 2x1x1x9")},
        11: (1, "padding 2x1x1x11"),
    }


def test_multi_head_attention_and_the_fast_path_tell_the_same_as_eagerly() -> None:
    layer, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), torch.randn(3, 7, WIDTH)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[0, 5:] = True
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    for options in (
        {"need_weights": False},
        {"need_weights": False, "key_padding_mask": padding},
        {"need_weights": False, "attn_mask": mask},
        {"need_weights": True},
    ):
        model = lambda x, options=options: layer(x, x, x, **options)[0]  # noqa: E731
        fast = compiled(model)
        before = fast(x)
        with evotune.recording() as calls:
            assert torch.equal(fast(x), before)
        eager = evotune.record(model, x)
        assert told(calls) == told(eager), options
    whole = encoder(enable_nested_tensor=False)
    assert told(evotune.record(compiled(whole), x)) == told(evotune.record(whole, x))


def test_autocast_inside_and_around_a_graph() -> None:
    x = torch.randn(1, 2, 6, 16)

    def inside(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.scaled_dot_product_attention(x, x, x)

    around = compiled(lambda x: F.scaled_dot_product_attention(x, x, x))
    with evotune.recording() as calls:
        compiled(inside)(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            around(x)
        around(x)
    assert Counter({call.entry.dtype: call.count for call in calls}) == {
        "bfloat16": 2,
        "float32": 1,
    }


def test_checkpoints_and_grad() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        attention = lambda y: F.scaled_dot_product_attention(y, y, y).sin()  # noqa: E731
        out: torch.Tensor = checkpoint(attention, x, use_reentrant=False)
        return out.sum()

    x = torch.randn(1, 2, 6, 16, requires_grad=True)
    with torch.enable_grad(), evotune.recording() as calls:
        compiled(model)(x).backward()
    assert x.grad is not None
    (found,) = calls
    assert (found.count, found.entry.call["grad"]) == (1, True)


def test_graph_breaks_leave_no_call_out() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x = F.scaled_dot_product_attention(x, x, x)
        torch._dynamo.graph_break()
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    calls = evotune.record(torch.compile(model, backend="eager"), torch.randn(1, 2, 6, 16))
    assert {call.entry.variant["causal"]: call.count for call in calls} == {False: 1, True: 1}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("eager", {}), ("sdpa", {}), ("flash_attention_2", {})),
        ("sdpa", {"position_bias": torch.ones(1, 4, 6, 6)}),
    ],
)
def test_attention_of_transformers_tells_the_same_as_eagerly(
    name: str, options: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Attention(name, transformers(monkeypatch), softcap=None, **options)
    q, kv = torch.randn(2, 4, 6, 16), torch.randn(2, 2, 6, 16)
    fast = compiled(model)
    before = fast(q, kv)
    with evotune.recording() as calls:
        assert torch.equal(fast(q, kv), before)
    eager = evotune.record(model, q, kv)
    assert told(calls) == told(eager)
    (found,) = calls
    assert found.entry.call["function"] == f"transformers {name}" != _FUNCTION
    assert (found.entry.shape["heads"], found.entry.shape["kv_heads"]) == (4, 2)
