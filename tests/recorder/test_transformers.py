"""Attention functions of transformers, with stand-ins where it is not installed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evotune
from tests.recorder.models import Attention, by_formula, by_sdpa, transformers


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


def test_a_function_with_other_arguments_ends_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    modeling = transformers(monkeypatch)
    modeling.eager_attention_forward = lambda scores: (scores, None)  # type: ignore[attr-defined]
    with evotune.recording() as calls:
        assert modeling.eager_attention_forward(3) == (3, None)
    assert not calls
    assert calls.undescribed.total() == 1
    assert "could not be described: transformers eager" in str(calls)
