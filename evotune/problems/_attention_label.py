"""The label of a case of attention, as reports print it."""

from __future__ import annotations

from collections.abc import Mapping

from evotune.problems import _attention_layouts as layouts
from evotune.problems._attention_features import Features
from evotune.problems.problem import Case
from evotune.trial import Value


def label_of(symbols: Mapping[str, Value], usual_scale: float) -> str:
    """The label, such as `(1,8/2,512x1024,64,scale=0.1) causal`: batch, heads (of queries / of
    keys), length (of queries x of keys), head size (of k / of v), features, mask. A part that has
    its usual value is left out."""
    heads = str(symbols["heads"])
    if symbols["kv_heads"] != symbols["heads"]:
        heads += f"/{symbols['kv_heads']}"
    length = str(symbols["seq_len_q"])
    if symbols["seq_len_k"] != symbols["seq_len_q"]:
        length += f"x{symbols['seq_len_k']}"
    scale = symbols["softmax_scale"]
    told = "" if scale == usual_scale else f",scale={scale}"
    if symbols["layout"] != layouts.DEFAULT:
        told += f",{symbols['layout']}"
    mine = Features.of(Case("", symbols))
    mask = "causal" if symbols["causal"] else "full"
    if mine.bottom_right:
        mask += " bottom_right"
    head_dim = str(symbols["head_dim"])
    if symbols["value_dim"] != symbols["head_dim"]:
        head_dim += f"/{symbols['value_dim']}"
    return f"({symbols['batch']},{heads},{length},{head_dim}{told}{mine.words()}) {mask}"
