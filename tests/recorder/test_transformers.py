"""Attention functions of transformers, with stand-ins where it is not installed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evotune
from evotune.recorder.calls import Calls
from evotune.recorder.recordings import heard_by
from tests.recorder.models import Attention, by_formula, by_sdpa, transformers

FUNCTION = "F.scaled_dot_product_attention"


def case_of(
    monkeypatch: pytest.MonkeyPatch, name: str, mask: torch.Tensor | None = None, **options: Any
) -> tuple[dict[str, Any], dict[str, Any], str]:
    modeling = transformers(monkeypatch)
    model = Attention(name, modeling, **options)
    rows = options.pop("rows", 6)
    q, kv = torch.randn(2, 4, rows, 16), torch.randn(2, 2, 6, 16)
    with torch.no_grad():
        (found,) = evotune.record(model, q, kv, mask)
    assert modeling.eager_attention_forward is by_formula
    assert modeling.ALL_ATTENTION_FUNCTIONS["sdpa"] is by_sdpa
    assert found.count == 1
    return {**found.entry.shape}, {**found.entry.variant}, found.mask


def test_sdpa_tells_grouped_heads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, variant, mask = case_of(monkeypatch, "sdpa")
    assert (shape["heads"], shape["kv_heads"]) == (4, 2)
    assert (variant, mask) == ({"causal": True}, "")
    hidden = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    _, variant, mask = case_of(monkeypatch, "sdpa", hidden, sliding_window=3)
    assert (variant["causal"], mask) == (False, "bool 2x1x6x6")


def test_a_position_bias_is_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    bias, hidden = torch.zeros(1, 4, 6, 6), torch.ones(2, 1, 6, 6, dtype=torch.bool)
    _, variant, mask = case_of(monkeypatch, "sdpa", position_bias=bias)
    assert (variant["causal"], mask) == (False, "bias 1x4x6x6 float32")
    _, _, mask = case_of(monkeypatch, "sdpa", hidden, position_bias=bias)
    assert mask == "bias 2x4x6x6 float32"


def test_what_a_package_would_serve_is_told_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    modeling = transformers(monkeypatch)
    q, kv = torch.randn(2, 4, 6, 16), torch.randn(2, 2, 6, 16)
    for name, function, heads in (("sdpa", FUNCTION, 4), ("eager", "transformers eager", 2)):
        calls = Calls()
        with heard_by(calls, as_served=True):
            Attention(name, modeling)(q, kv)
        (found,) = calls
        assert (found.entry.call["function"], found.entry.shape["kv_heads"]) == (function, heads)
        assert found.count == 1


def test_eager_has_all_in_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    bias = torch.zeros(2, 1, 6, 6)
    shape, variant, mask = case_of(monkeypatch, "eager", bias, softcap=30.0, sliding_window=3)
    assert (variant["causal"], mask) == (False, "bias 2x1x6x6 float32")
    assert shape["softcap"] == 30.0
    assert "window_left" not in shape


def test_flash_has_padding_windows_and_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    padding = torch.ones(2, 6, dtype=torch.bool)
    shape, variant, mask = case_of(
        *(monkeypatch, "flash_attention_2", padding), sliding_window=3, s_aux=torch.ones(4)
    )
    assert (variant["causal"], mask) == (True, "padding 2x1x1x6")
    assert (shape["window_left"], shape["sinks"], shape["alignment"]) == (2, True, "bottom_right")
    shape, variant, mask = case_of(monkeypatch, "flash_attention_2", sliding_window=6)
    assert (variant, mask) == ({"causal": True}, "")
    assert "window_left" not in shape


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_a_position_bias_and_the_mask_are_one_mask(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bias = torch.randn(6, 6, 4).permute(2, 0, 1)[None]  # as T5 makes it
    _, variant, mask = case_of(monkeypatch, name, position_bias=bias)
    assert (variant["causal"], mask) == (False, "bias 1x4x6x6 float32")
    hidden = torch.zeros(2, 1, 1, 6)
    _, variant, mask = case_of(monkeypatch, name, hidden, position_bias=bias)
    assert (variant["causal"], mask) == (False, "bias 2x4x6x6 float32")


def test_a_function_with_other_arguments_ends_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    modeling = transformers(monkeypatch)
    modeling.eager_attention_forward = lambda scores: (scores, None)  # type: ignore[attr-defined]
    with evotune.recording() as calls:
        assert modeling.eager_attention_forward(3) == (3, None)
    assert not calls
    assert calls.undescribed.total() == 1
    assert "could not be described: transformers eager" in str(calls)
