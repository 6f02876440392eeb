"""Made-up cases and scores of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evotune.portfolios.matrix_store import REFUSED, Point, Score, point_of
from evotune.problems.attention import Attention
from evotune.trial import Region

PROBLEM = Attention("float16")
RANGES: Mapping[str, tuple[float, float]] = {
    "batch": (1, 64),
    "heads": (1, 64),
    "seq_len_q": (1, 1 << 17),
    "seq_len_k": (1, 1 << 17),
    "group": (1, 16),
    "softmax_scale": (0.01, 1.0),
    "elements": (1, 1 << 40),
}


def point(
    length: int,
    *,
    batch: int = 1,
    heads: int = 8,
    kv_heads: int = 8,
    keys: int = 0,
    head_dim: int = 64,
    causal: bool = False,
    weight: float = 1.0,
) -> Point:
    shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    shape |= {"seq_len_q": length, "seq_len_k": keys or length}
    return point_of(PROBLEM, PROBLEM.case(shape, {"causal": causal}), weight)


def score(speedup: float | None, low: float | None = None) -> Score | None:
    """Won where the lower end (the speedup, if not given) is at least 1; refused by the gate for a
    speedup of 0; None where the kernel cannot run."""
    if speedup is None:
        return None
    low = speedup if low is None else low
    return Score(speedup, low, won=low >= 1.0) if speedup > 0 else REFUSED


def scored(points: Sequence[Point], *kernels: Callable[[Point], float | None]) -> list[Point]:
    return [p.with_scores([score(kernel(p)) for kernel in kernels]) for p in points]


def domain(**fixed: object) -> Region:
    return Region({"dtype": "float16", "head_dim": 64, "causal": False, **fixed}, RANGES, 100)  # type: ignore[dict-item]
