"""Right and wrong ways of computing the shipped problems softmax, rms_norm and matmul, as kernels
would: in float32, rounded to the problem's dtype at the end."""

from __future__ import annotations

from collections.abc import Callable

import torch

Way = Callable[..., torch.Tensor]
PROBLEMS = {"softmax": "Softmax", "rms_norm": "RmsNorm", "matmul": "Matmul"}


def reference_name(problem: str) -> str:
    return f"kernels/{problem}/problem.py:{PROBLEMS[problem]}"


def _sum(values: torch.Tensor) -> torch.Tensor:
    """The sum of each row, added in order."""
    total = torch.zeros_like(values[..., :1])
    for column in values.split(1, dim=-1):
        total += column
    return total


def _maximum(x: torch.Tensor) -> torch.Tensor:
    return x.amax(-1, keepdim=True)


def _normalised(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum(-1, keepdim=True)


def _softmax_in_order(x: torch.Tensor) -> torch.Tensor:
    weights = torch.exp(x - _maximum(x))
    return weights / _sum(weights)


def _softmax_by_logsumexp(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x - (_maximum(x) + _sum(torch.exp(x - _maximum(x))).log()))


def _softmax_by_exp2(x: torch.Tensor) -> torch.Tensor:
    scaled = x * 1.44269504
    weights = torch.exp2(scaled - _maximum(scaled))
    return weights * (1.0 / _sum(weights))


def _softmax_online(x: torch.Tensor) -> torch.Tensor:
    top = torch.full_like(x[..., :1], -1e30)
    total = torch.zeros_like(top)
    for column in x.split(1, dim=-1):
        higher = torch.maximum(top, column)
        total = total * torch.exp(top - higher) + torch.exp(column - higher)
        top = higher
    return torch.exp(x - top) / total


def _rms_norm_in_order(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(_sum(x * x) / x.shape[-1] + 1e-6) * weight


def _rms_norm_by_reciprocals(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * weight * torch.rsqrt(_sum(x * x) * (1.0 / x.shape[-1]) + 1e-6)


def _rms_norm_clamped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return _rms_norm_in_order(x, weight).clamp(-6.0, 6.0)


def _rms_norm_without_eps(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True)) * weight


def _rms_norm_of_brain_squares(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    squares = (x * x).bfloat16().float()
    return x / torch.sqrt(squares.mean(-1, keepdim=True) + 1e-6) * weight


def _matmul_in_order(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(a.shape[0], b.shape[1])
    for column, row in zip(a.unbind(1), b, strict=True):
        out += column[:, None] * row
    return out


def _matmul_backwards(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _matmul_in_order(a.flip(1), b.flip(0))


def _matmul_in_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rounded = (a.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF
    return rounded.view(torch.float32) @ b


def _matmul_without_the_last(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a[:, :-1] @ b[:-1]


def _matmul_in_half_sums(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(a.shape[0], b.shape[1])
    for x, y in zip(a.split(16, 1), b.split(16, 0), strict=True):
        out = (out + x @ y).bfloat16().float()
    return out


HONEST: dict[str, dict[str, Way]] = {
    "softmax": {
        "in_order": _softmax_in_order,
        "logsumexp": _softmax_by_logsumexp,
        "exp2": _softmax_by_exp2,
        "online": _softmax_online,
        "library": lambda x: x.softmax(-1),
    },
    "rms_norm": {"in_order": _rms_norm_in_order, "reciprocals": _rms_norm_by_reciprocals},
    "matmul": {"in_order": _matmul_in_order, "backwards": _matmul_backwards},
}
WRONG: dict[str, dict[str, Way]] = {
    "softmax": {
        "no_maximum": lambda x: _normalised(torch.exp(x)),
        "maximum_from_zero": lambda x: _normalised(torch.exp(x - _maximum(x).clamp(min=0))),
        "drops_below_e-6": lambda x: _normalised(
            torch.exp(x - _maximum(x)) * (x > _maximum(x) - 6)
        ),
        "drops_below_e-12": lambda x: _normalised(
            torch.exp(x - _maximum(x)) * (x > _maximum(x) - 12)
        ),
        "zero_is_masked": lambda x: _normalised(
            torch.where(x == 0, 0.0, torch.exp(x - _maximum(x)))
        ),
    },
    "rms_norm": {"clamped": _rms_norm_clamped, "no_eps": _rms_norm_without_eps},
    "matmul": {
        "without_the_last": _matmul_without_the_last,
        "sums_in_bfloat16": _matmul_in_half_sums,
        "clamped": lambda a, b: (a @ b).clamp(-600.0, 600.0),
    },
}
WRONG_IN_FLOAT32: dict[str, dict[str, Way]] = {
    "softmax": {
        "crude_exp": lambda x: _normalised(
            torch.exp(x - _maximum(x)) * (1 + 1e-3 * torch.sin(3 * x))
        ),
        "sum_in_float16": lambda x: (
            torch.exp(x - _maximum(x))
            / torch.exp(x - _maximum(x)).half().cumsum(-1)[..., -1:].float()
        ),
    },
    "rms_norm": {"squares_in_bfloat16": _rms_norm_of_brain_squares},
    "matmul": {"inputs_in_tf32": _matmul_in_tf32},
}
