"""What a recording tells of calls that run eagerly."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import evotune
from evotune.recorder.calls import Calls, RecordedCall
from tests.recorder.models import HEADS, WIDTH, GroupedDecoder, SelfAttention, encoder


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def single(calls: Calls) -> RecordedCall:
    (found,) = calls
    return found


def tensors(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, **options)


def called(*given: torch.Tensor, **options: Any) -> RecordedCall:
    return single(evotune.record(lambda: F.scaled_dot_product_attention(*given, **options)))


def test_a_call_is_told_with_shape_layout_dtype_and_count() -> None:
    model, x = SelfAttention().eval(), tensors(3, 7, WIDTH)
    before = model(x)
    with evotune.recording() as calls:
        results = [model(x) for _ in range(3)]
    assert all(torch.equal(result, before) for result in results)
    found = single(calls)
    assert found.count == calls.count == 3
    assert found.entry.shape == {
        **{"batch": 3, "heads": HEADS, "kv_heads": HEADS},
        **{"seq_len_q": 7, "seq_len_k": 7, "head_dim": WIDTH // HEADS},
    }
    assert found.entry.variant == {"causal": False, "layout": "packed_qkv"}
    assert (found.entry.dtype, found.entry.problem) == ("float32", "attention")
    assert found.entry.call == {"function": "F.scaled_dot_product_attention", "device": "cpu"}
    assert found.label == "(3,2,7,16,packed_qkv) full"


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "sizes"),
    [
        ((3, 1, 1, 7), torch.bool, "padding", (3, 1, 1)),
        ((1, 1, 1, 7), torch.bool, "padding", (1, 1, 1)),
        ((3, 1, 1, 7), torch.float32, "bias", (3, 1, 1)),
        ((7, 7), torch.bool, "bool", (1, 1, 7)),
        ((3, 1, 7, 7), torch.bool, "bool", (3, 1, 7)),
        ((3, 2, 1, 7), torch.bool, "bool", (3, 2, 1)),
        ((1, 2, 7, 7), torch.float32, "bias", (1, 2, 7)),
        ((3, 2, 1, 7), torch.float32, "bias", (3, 2, 1)),
    ],
)
def test_a_mask_is_told_by_kind_and_by_its_sizes_as_broadcast(
    shape: tuple[int, ...], dtype: torch.dtype, kind: str, sizes: tuple[int, int, int]
) -> None:
    mask = torch.ones(shape, dtype=dtype)
    found = single(evotune.record(SelfAttention(), tensors(3, 7, WIDTH), mask))
    told = found.entry.variant
    assert told["mask"] == kind
    assert (told["mask_batch"], told["mask_heads"], told["mask_rows"]) == sizes
    assert told.get("mask_dtype") == (None if dtype == torch.bool else "float32")
    words = "x".join(map(str, (*sizes, 7)))
    assert found.mask == f"{kind} {words}" + ("" if dtype == torch.bool else " float32")


def test_padding_is_known_by_its_shape_with_holes_too() -> None:
    mask = torch.tensor([True, False, True, False, True, True, False]).expand(3, 1, 1, 7)
    assert single(evotune.record(SelfAttention(), tensors(3, 7, WIDTH), mask)).mask == (
        "padding 1x1x1x7"
    )


def test_a_bias_of_the_inputs_dtype_is_told_with_its_dtype() -> None:
    x = tensors(2, 2, 5, 16, dtype=torch.bfloat16)
    for bias in (torch.zeros(1, 2, 5, 5, dtype=torch.bfloat16), torch.zeros(1, 2, 5, 5)):
        if bias.dtype == torch.float32:
            continue  # PyTorch takes a float32 bias with float32 inputs, or under autocast
        assert called(x, x, x, attn_mask=bias).mask == "bias 1x2x5x5 bfloat16"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wide = x.float()
        found = called(wide, wide, wide, attn_mask=torch.zeros(1, 2, 5, 5))
    assert found.mask == "bias 1x2x5x5 float32"


def test_a_mask_that_is_expanded_counts_as_broadcast_and_its_strides_are_kept() -> None:
    rows = torch.ones(3, 1, 1, 7, dtype=torch.bool).expand(3, 2, 7, 7)
    x = tensors(3, 2, 7, 16)
    assert called(x, x, x, attn_mask=rows).mask == "padding 3x1x1x7"
    every_second = torch.ones(7, 14, dtype=torch.bool)[:, ::2]
    found = called(x, x, x, attn_mask=every_second)
    assert found.mask == "bool 1x1x7x7"
    assert found.entry.call["mask_strides"] == [0, 0, 14, 2]
    assert "side by side" in str(found.entry.call["obstacle"])
    assert "mask_strides" not in called(x, x, x, attn_mask=rows).entry.call


def test_strides_without_a_named_layout_are_told() -> None:
    q = tensors(2, 4, 6, 16)
    kv = tensors(2, 1, 6, 16).expand(2, 4, 6, 16)
    found = called(q, kv, kv)
    strides = {"q": [384, 96, 16, 1], "k": [96, 0, 16, 1], "v": [96, 0, 16, 1]}
    assert found.entry.call["strides"] == strides
    assert found.entry.variant["layout"] == "mixed"
    columns = tensors(2, 4, 16, 6).transpose(2, 3)
    found = called(columns, columns, columns)
    assert found.entry.call["obstacle"] == "the elements of a head do not lie side by side"


def test_layouts_are_named_where_sizes_of_one_leave_strides_open() -> None:
    blhd = tensors(2, 6, 4, 16).transpose(1, 2)
    assert called(blhd, blhd, blhd).entry.variant["layout"] == "blhd"
    one_row = tensors(2, 1, 4, 16).transpose(1, 2)
    assert "layout" not in called(one_row, one_row, one_row).entry.variant


def test_options_of_sdpa_are_told() -> None:
    x = tensors(1, 2, 6, 16)
    found = called(x, x, x, is_causal=True, scale=0.5, dropout_p=0.25)
    assert found.entry.variant == {"causal": True}
    assert (found.entry.shape["scale"], found.entry.call["dropout"]) == (0.5, 0.25)
    usual = called(x, x, x, scale=0.25)
    assert "scale" not in usual.entry.shape
    assert "dropout" not in usual.entry.call
    narrow = called(x, x, x[..., :8].contiguous())
    assert (narrow.entry.shape["head_dim"], narrow.entry.shape["value_dim"]) == (16, 8)


def test_grad_is_told_where_an_input_requires_it() -> None:
    model, x = SelfAttention(), tensors(1, 4, WIDTH)
    assert "grad" not in single(evotune.record(model, x)).entry.call
    with torch.enable_grad():
        found = single(evotune.record(model, x))
    assert found.entry.call["grad"] is True
    assert "requires grad" in found.why_none("cpu")


def test_grouped_heads_and_a_cache_that_grows() -> None:
    model = GroupedDecoder()
    model.reset(batch=1)
    with evotune.recording() as calls:
        model(tensors(1, 5, WIDTH))
        for _ in range(2):
            model(tensors(1, 1, WIDTH))
    lengths = {(c.entry.shape["seq_len_q"], c.entry.shape["seq_len_k"]) for c in calls}
    assert lengths == {(5, 5), (1, 6), (1, 7)}
    for call in calls:
        assert (call.entry.shape["heads"], call.entry.shape["kv_heads"]) == (4, 2)
        assert call.entry.shape["scale"] == 0.5
        assert call.entry.variant["causal"] is (call.entry.shape["seq_len_q"] == 5)
        keys = call.entry.call["strides"]["k"]  # type: ignore[call-overload, index]
        assert keys == [256, 128, 8, 1]  # the cache has room for 16 tokens


def test_autocast_is_told_by_the_dtype_that_is_computed() -> None:
    x = tensors(1, 2, 6, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = called(x, x, x)
    assert (found.entry.dtype, found.entry.call["cast_from"]) == ("bfloat16", "float32")


def test_a_default_device_changes_nothing() -> None:
    with torch.device("cpu"), evotune.recording() as calls:
        x = torch.ones(1, 2, 6, 16)
        F.scaled_dot_product_attention(x, x, x)
    assert single(calls).entry.shape["seq_len_q"] == 6


def test_the_fast_path_of_an_encoder_stays_and_is_told() -> None:
    model, x = encoder(), tensors(3, 7, WIDTH)
    before = model(x)
    with evotune.recording() as calls:
        assert torch.equal(model(x), before)
    found = single(calls)
    assert (found.count, found.label) == (2, "(3,2,7,16) full")
    assert found.entry.call["function"] == "nn fast path"
    assert "set_fastpath_enabled" in str(calls)


def test_an_encoder_that_packs_padded_batches_tells_packed_sequences() -> None:
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[0, 4:] = True
    warnings.simplefilter("ignore")  # of nested tensors, which PyTorch makes here
    calls = evotune.record(encoder(), tensors(3, 7, WIDTH), src_key_padding_mask=padding)
    found = single(calls)
    assert (found.entry.problem, found.count) == ("attention_varlen", 2)
    sizes = {"sequences": 3, "tokens_q": 18, "longest_k": 7, "heads": 2, "head_dim": 16}
    assert sizes.items() <= found.entry.shape.items()
    assert found.spaces("cpu") == ["attention-varlen-cpu"]


def test_multi_head_attention_tells_padding_and_weights() -> None:
    layer, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), tensors(3, 7, WIDTH)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    calls = evotune.record(layer, x, x, x, key_padding_mask=padding, need_weights=False)
    assert single(calls).mask == "bias 3x2x1x7 float32"  # as PyTorch makes it
    with_weights = single(evotune.record(layer, x, x, x))
    assert "weights" in with_weights.why_none("cpu")
    assert with_weights.entry.shape == single(calls).entry.shape


def test_all_threads_are_recorded_and_no_call_is_lost() -> None:
    x = tensors(1, 1, 4, 8)
    with evotune.recording() as calls:
        threads = [
            threading.Thread(
                target=lambda: [F.scaled_dot_product_attention(x, x, x) for _ in range(300)]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert single(calls).count == 1200


def test_nested_recordings_each_tell_their_calls() -> None:
    x = tensors(1, 1, 4, 8)
    with evotune.recording() as outer:
        F.scaled_dot_product_attention(x, x, x)
        with evotune.recording() as inner:
            F.scaled_dot_product_attention(x, x, x)
        F.scaled_dot_product_attention(x, x, x)
    assert (outer.count, inner.count) == (3, 1)


def test_a_call_that_pytorch_refuses_is_not_counted() -> None:
    x = tensors(1, 1, 4, 8)
    with evotune.recording() as calls, pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(x, x[..., :3], x)
    assert not calls
    assert str(calls) == "0 calls of 0 cases"


def test_calls_of_three_dimensions_and_nested_tensors_are_told_with_what_hinders() -> None:
    x = tensors(2, 4, 8)
    assert called(x, x, x).entry.call["obstacle"] == "tensors of 3 dimensions, not of 4"
    lengths = [tensors(3, 2, 8), tensors(5, 2, 8)]
    nested = torch.nested.nested_tensor(lengths, layout=torch.jagged).transpose(1, 2)
    assert called(nested, nested, nested).entry.call["obstacle"] == "nested tensors"


def test_a_function_of_torch_func_is_recorded() -> None:
    x = tensors(3, 2, 4, 8)
    with evotune.recording() as calls:
        out = torch.vmap(lambda each: F.scaled_dot_product_attention(each, each, each))(x)
    assert torch.allclose(out, F.scaled_dot_product_attention(x, x, x), atol=1e-6)
    assert calls.count == 1


def test_the_share_of_the_models_time_is_told_if_asked() -> None:
    model, x = SelfAttention(), tensors(2, 9, WIDTH)
    runs = []
    model.register_forward_hook(lambda *_: runs.append(1))
    calls = evotune.record(model, x, time=True)
    share = single(calls).share
    assert share is not None
    assert 0 < share < 1
    assert (single(calls).count, len(runs)) == (1, 2)
    assert "of model" in str(calls)
    untimed = evotune.record(model, x)
    assert single(untimed).share is None
    assert "of model" not in str(untimed)
