"""The sizes of the items of feature_models.py, and the cases of attention that they call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Mistral:
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    layers: int = 4
    length: int = 8192
    window: int = 4096


@dataclass(frozen=True)
class GptOss:
    """Every second layer has the window."""

    heads: int = 64
    kv_heads: int = 8
    head_dim: int = 64
    layers: int = 4
    length: int = 2048
    window: int = 128


@dataclass(frozen=True)
class Bert:
    """Lengths: longest first."""

    lengths: tuple[int, ...]
    heads: int = 12
    head_dim: int = 64
    layers: int = 12


@dataclass(frozen=True)
class Decode:
    """Lengths: before the first step. None is longer than `longest` behind the last one."""

    lengths: tuple[int, ...]
    longest: int
    steps: int = 16
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 16


def mistral_of(tiny: bool) -> Mistral:
    return Mistral(4, 2, 32, 2, 64, 16) if tiny else Mistral()


def gpt_oss_of(tiny: bool) -> GptOss:
    return GptOss(4, 2, 32, 2, 64, 16) if tiny else GptOss()


def bert_of(tiny: bool) -> Bert:
    return Bert(_zipf(64, 5), 2, 32, 2) if tiny else Bert(_zipf(512, 32))


def decode_of(tiny: bool) -> Decode:
    if tiny:
        return Decode((60, 33, 17, 4), 64, 4, 4, 2, 32)
    return Decode((4080,) * 8, 4096)


def _zipf(longest: int, sequences: int) -> tuple[int, ...]:
    return tuple(longest // number for number in range(1, sequences + 1))


@dataclass(frozen=True)
class Case:
    """A case of attention, by the name of a shipped space for a GPU and of one for a CPU. `start`
    replaces values of the GPU's default configuration."""

    item: str
    space: str
    space_on_cpu: str
    shape: dict[str, Any]
    variant: dict[str, Any]
    start: dict[str, Any] = field(default_factory=dict)


_WIDE = {"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 128, "STAGES": 2, "SKIP_MASKED": True}
_SMALL = {"CONSUMER_WARPGROUPS": 3, "BLOCK_N": 128, "STAGES": 3, "SKIP_MASKED": True}


def cases(tiny: bool) -> list[Case]:
    """All cases. A captured graph packs all places of a padded batch, so that is one of its own."""
    mistral, oss, bert, decode = (
        mistral_of(tiny), gpt_oss_of(tiny), bert_of(tiny), decode_of(tiny)
    )  # fmt: skip
    features = "attention_wgmma_features", "attention_features_cpu"
    bottom = {"causal": True, "alignment": "bottom_right"}
    found = [Case("mistral-window", *features, _dense(mistral),
                  {**bottom, "window_left": mistral.window - 1}, _WIDE)]  # fmt: skip
    for window, start in (({"window_left": oss.window - 1}, {}), ({}, _SMALL)):
        variant = {**bottom, **window, "sinks": True}
        found.append(Case("gpt-oss-sinks", *features, _dense(oss), variant, start))
    batch, longest = len(bert.lengths), bert.lengths[0]
    for sequences, tokens in ((batch, sum(bert.lengths)), (3 * batch, batch * longest)):
        shape = {"sequences": sequences, "heads": bert.heads, "kv_heads": bert.heads}
        shape |= {f"tokens_{side}": tokens for side in "qk"}
        shape |= {f"longest_{side}": longest for side in "qk"}
        shape["head_dim"] = bert.head_dim
        found.append(
            Case("bert-padded", "attention_varlen", "attention_varlen_cpu", shape,
                 {"causal": False})
        )  # fmt: skip
    shape = {"sequences": len(decode.lengths), "queries": 1, "heads": decode.heads}
    shape |= {"kv_heads": decode.kv_heads, "longest": decode.longest}
    shape |= {"page_size": decode.page_size, "head_dim": decode.head_dim}
    found.append(
        Case("decode-paged", "attention_paged", "attention_paged_cpu",
             shape if tiny else {**shape, "lengths": "even"}, {"causal": True})
    )  # fmt: skip
    return found


def _dense(model: Mistral | GptOss) -> dict[str, int]:
    return {"batch": 1, "heads": model.heads, "kv_heads": model.kv_heads,
            "seq_len": model.length, "head_dim": model.head_dim}  # fmt: skip
