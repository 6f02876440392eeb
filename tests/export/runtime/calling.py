"""Calls of packages with the features of a case, held to evotune's own reference."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from evotune.export.runtime._asked_features import asked_of
from evotune.problems.attention import Attention
from evotune.problems.problem import Case


def arguments(
    problem: Attention, case: Case, device: str = "cpu"
) -> tuple[list[torch.Tensor], dict[str, Any], dict[str, torch.Tensor]]:
    """A call of the case: its tensors and keywords, and the inputs of the case by name."""
    inputs = problem.make_inputs(case, "normal", 7, device)
    asked = asked_of(case.symbols)
    window = (asked.window_left, None if asked.window_right < 0 else asked.window_right)
    named = {
        "alignment": "bottom_right" if asked.bottom_right else "top_left",
        "window": window if asked.window_left >= 0 or asked.window_right >= 0 else None,
        "softcap": asked.softcap,
        "alibi_slopes": inputs.get("alibi_slopes"),
        "sinks": inputs.get("sinks"),
        "score_mod": asked.score_mod,
        "return_lse": asked.lse,
    }
    if (mask := inputs.get("attn_mask")) is not None:
        named["attn_mask"] = mask.view(torch.bool) if mask.dtype == torch.uint8 else mask
    options = {"is_causal": bool(case.symbols["causal"]), "enable_gqa": True}
    return [inputs[name] for name in "qkv"], {**options, **named}, inputs


def is_right(problem: Attention, case: Case, inputs: dict[str, torch.Tensor], found: Any) -> bool:
    """Whether the result of a call is within the limits of evotune's gate."""
    reference = problem.reference(case, inputs)
    allowed = problem.tolerances(case, inputs, reference)
    outputs = found if isinstance(found, tuple) else (found,)
    pairs = [(reference[name], allowed[name]) for name in reference]
    return all(
        bool(((output == wanted) | ((output - wanted).abs() <= limit)).all())  # -inf is its own
        for output, (wanted, limit) in zip(outputs, pairs, strict=True)
    )


def served_since(package: ModuleType) -> Callable[[], int]:
    """A function that gives the number of calls that the package has served since the last time."""
    last = package.info()["calls"]

    def since() -> int:
        nonlocal last
        last, before = package.info()["calls"], last
        return int(last - before)

    return since
