"""Attention scores as features change them, and the tolerance of a kernel's scores.

Scores have the dimensions (batch, kv_heads, heads a group, rows, keys).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from evotune.problems.attention_features import Features, parsed, sees
from evotune.problems.problem import Case, Tensors, table_on
from evotune.space.language.nodes import Literal, Name, Node

_UNIT = 2.0**-24  # of float32
ABSORBS = 2.0**80
"""A bias of this size makes every score the same, in float64 too."""
_FEW = 8.0
"""Errors of a tanh (relative to the cap), of products and sums, in units in the last place."""


@dataclass(frozen=True)
class Scores:
    """Computes how the features of a case change its scores. `inputs`: the case's inputs."""

    case: Case
    inputs: Tensors

    @functools.cached_property
    def features(self) -> Features:
        return Features.of(self.case)

    @functools.cached_property
    def _sees(self) -> tuple[torch.Tensor, torch.Tensor]:
        s: Any = self.case.symbols
        device = self.inputs["q"].device
        queries, keys = s["seq_len_q"], s["seq_len_k"]
        if not (self.features.has_window or s["causal"]):  # a copy to a GPU takes longer
            first = torch.zeros(queries, dtype=torch.int64, device=device)
            return first, torch.full_like(first, keys - 1)
        ends = sees(self.features, causal=s["causal"], queries=queries, keys=keys)
        first, last = (table_on(device, end) for end in ends)
        return first, last

    def seen(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The first and the last key that each of the rows sees."""
        first, last = self._sees
        return first[rows], last[rows]

    def count(self, rows: slice) -> torch.Tensor:
        """The number of keys that each of the rows sees."""
        first, last = self.seen(rows)
        return (last - first + 1).clamp(min=0)

    def hidden(self, rows: slice) -> torch.Tensor | None:
        """A mask of the keys that a row does not see; None if none is hidden. It has the dimensions
        of scores, or (rows, keys) without a boolean mask."""
        placed = self.placed(rows)
        if not self.features.mask or self.features.mask.is_bias:
            return placed
        hidden = self._mask(rows) == 0
        return hidden if placed is None else hidden | placed

    def placed(self, rows: slice) -> torch.Tensor | None:
        """The keys (rows, keys) that a row does not see because of their places."""
        keys = int(self.case.symbols["seq_len_k"])
        if not (self.features.has_window or self.case.symbols["causal"]):
            return None
        first, last = self.seen(rows)
        key = torch.arange(keys, device=first.device)
        return (key < first[:, None]) | (key > last[:, None])

    def bias(self, rows: slice, dtype: torch.dtype) -> torch.Tensor | None:
        """The terms that ALiBi adds, (kv_heads, group, rows, keys); None without it."""
        if not self.features.alibi:
            return None
        queries, keys = (int(self.case.symbols[n]) for n in ("seq_len_q", "seq_len_k"))
        slopes = self.inputs["alibi_slopes"].to(dtype)
        own = torch.arange(queries, device=slopes.device)[rows]
        if self.features.bottom_right:
            own = own + (keys - queries)
        distance = (own[:, None] - torch.arange(keys, device=slopes.device)).abs().to(dtype)
        return -slopes.view(int(self.case.symbols["kv_heads"]), -1, 1, 1) * distance

    def added(self, rows: slice, dtype: torch.dtype) -> torch.Tensor | None:
        """The mask that is added, broadcast to scores; None without one."""
        return self._mask(rows).to(dtype) if self.features.mask.is_bias else None

    def _mask(self, rows: slice) -> torch.Tensor:
        """The tensor of the mask with the dimensions of scores, broadcast."""
        mask = self.inputs["attn_mask"]
        if mask.shape[2] > 1:
            mask = mask[:, :, rows]
        batch, heads, *others = mask.shape
        kv_heads = int(self.case.symbols["kv_heads"]) if heads > 1 else 1
        return mask.view(batch, kv_heads, -1, *others)

    def sink(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Each head's sink, (kv_heads, group, 1, 1); None without sinks."""
        if not self.features.sinks:
            return None
        return self.inputs["sinks"].to(dtype).view(int(self.case.symbols["kv_heads"]), -1, 1, 1)

    def changed(
        self, scores: torch.Tensor, rows: slice, error: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Applies the features to the scores of `rows`; a hidden score becomes -inf. `error` bounds
        the errors that a correct kernel's `scores` may have; the second result bounds the errors of
        its changed scores, and is None without `error`."""
        cap = self.features.softcap
        if cap:
            bent = torch.tanh(scores / cap)
            if error is not None:
                error = error * (1.0 - bent.square()) + _FEW * _UNIT * cap
            scores = bent.mul_(cap)
        bias = self.bias(rows, scores.dtype)
        if bias is not None:
            scores = scores + bias
            if error is not None:
                error = error + _FEW * _UNIT * (bias.abs() + scores.abs())
        if self.features.score_mod:
            scores, error = self._modified(scores, rows, error)
        added = self.added(rows, scores.dtype)
        if added is not None:
            scores = scores + added
            if error is not None:
                error = error + _FEW * _UNIT * (added.abs() + scores.abs())
                error = error.masked_fill(added.abs() > ABSORBS, 0.0)
        hidden = self.hidden(rows)
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        return scores, error

    def _modified(
        self, scores: torch.Tensor, rows: slice, error: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        s: Any = self.case.symbols

        def count(size: int, *shape: int) -> torch.Tensor:
            numbers = torch.arange(size, dtype=torch.float64, device=scores.device)
            return numbers.to(scores.dtype).view(shape)

        exact = torch.zeros((), dtype=scores.dtype, device=scores.device)
        names = {
            "score": (scores, exact if error is None else error),
            "head": (count(s["heads"], s["kv_heads"], -1, 1, 1), exact),
            "row": (count(s["seq_len_q"], -1, 1)[rows], exact),
            "column": (count(s["seq_len_k"], -1), exact),
        }
        value, off = evaluated(parsed(self.features.score_mod), names)
        value = value.to(scores.dtype).expand(scores.shape)
        return value, None if error is None else off.expand(scores.shape).clone()

    def weighed(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The softmax weights of changed scores, and the logarithm of each row's sum of
        exponentials (..., rows, 1), the sink included.

        The weights of a row and of its sink add up to 1. In a row that sees no key they are 0.
        Without features the logarithms are zeros, because nothing reads them.
        """
        if not self.features.any:  # nobody asks for the logarithms
            return torch.softmax(scores, dim=-1), torch.zeros_like(scores[..., :1])
        if self.features.mask.is_bias:
            return self._weighed_from_the_top(scores)
        lse = torch.logsumexp(scores, dim=-1, keepdim=True)
        sink = self.sink(scores.dtype)
        if sink is not None:
            lse = torch.logaddexp(lse, sink.expand_as(lse))
        return torch.exp(scores - lse.masked_fill(lse == float("-inf"), 0.0)), lse

    def _weighed_from_the_top(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for scores as low as the lowest float, beside which a logarithm is lost."""
        top = scores.amax(-1, keepdim=True)
        sink = self.sink(scores.dtype)
        if sink is not None:
            top = torch.maximum(top, sink)
        top = top.masked_fill(top == float("-inf"), 0.0)
        weights = torch.exp(scores - top)
        total = weights.sum(-1, keepdim=True)
        if sink is not None:
            total = total + torch.exp(sink - top)
        return weights / total.masked_fill(total == 0, 1.0), top + torch.log(total)

    def highest(self, scores: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Two tensors (..., rows, 1): the magnitude of each row's highest score, and the weight of
        its sink. The sink counts as a score. In a row that sees no key, and in one whose scores a
        bias absorbs, the magnitude is 0. Without a sink the weight is 0."""
        top = scores.amax(-1, keepdim=True)
        weight = torch.zeros_like(top)
        sink = self.sink(scores.dtype)
        if sink is not None:
            weight = torch.exp(sink - lse.masked_fill(lse == float("-inf"), 0.0))
            top = torch.maximum(top, sink)
        return top.masked_fill(top < -ABSORBS, 0.0).abs_(), weight


class WholeScores(Scores):
    """Scores of all rows at once, for a call that is timed: `prepare` makes beforehand all that
    does not depend on q, k and v, since a CUDA graph cannot capture copies from the CPU."""

    def prepare(self) -> None:
        _ = self._hidden, self._bias, self._whole_added, self._sink, self._places

    def hidden(self, rows: slice) -> torch.Tensor | None:
        return self._hidden

    def bias(self, rows: slice, dtype: torch.dtype) -> torch.Tensor | None:
        return self._bias

    def added(self, rows: slice, dtype: torch.dtype) -> torch.Tensor | None:
        return self._whole_added

    def sink(self, dtype: torch.dtype) -> torch.Tensor | None:
        return self._sink

    def _modified(
        self, scores: torch.Tensor, rows: slice, error: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Without the errors, which a library's call does not compute either."""
        assert error is None
        names = {"score": scores, **self._places}
        return modified_scores(parsed(self.features.score_mod), names), None

    @functools.cached_property
    def _hidden(self) -> torch.Tensor | None:
        return super().hidden(slice(None))

    @functools.cached_property
    def _bias(self) -> torch.Tensor | None:
        return super().bias(slice(None), torch.float32)

    @functools.cached_property
    def _whole_added(self) -> torch.Tensor | None:
        return super().added(slice(None), torch.float32)

    @functools.cached_property
    def _sink(self) -> torch.Tensor | None:
        return super().sink(torch.float32)

    @functools.cached_property
    def _places(self) -> dict[str, torch.Tensor]:
        """The numbers of heads, rows and columns that a score modification names."""
        if not self.features.score_mod:
            return {}
        s: Any = self.case.symbols
        sizes = {"head": s["heads"], "row": s["seq_len_q"], "column": s["seq_len_k"]}
        shapes = {"head": (s["kv_heads"], -1, 1, 1), "row": (-1, 1), "column": (-1,)}
        device = self.inputs["q"].device
        return {
            name: torch.arange(size, device=device).view(shapes[name])
            for name, size in sizes.items()
        }


_FEW_OF_EXPRESSIONS = 3.0
# Evaluates an expression on tensors, with the error that float32 may make: running error analysis.
#
# Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.3: each operation passes
# its operands' errors on, to first order, and adds a unit of its result; divisions add a few. Where
# a comparison may come out either way, the errors reach from one branch to the other.
Rounded: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Values, and the largest error of each. For a truth value the error is 1 if it may be wrong."""

_COMPARE: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "==": torch.eq,
    "!=": torch.ne,
}


def evaluated(node: Node, names: Mapping[str, Rounded]) -> Rounded:
    """The value of the tree, which broadcasts over the tensors of `names`."""
    if isinstance(node, Literal):
        like = next(iter(names.values()))[1]
        value = torch.full((), float(node.value), dtype=like.dtype, device=like.device)
        if isinstance(node.value, bool):
            return value != 0, torch.zeros_like(value)
        exact = float(node.value).is_integer() and abs(float(node.value)) < 1 << 24
        return value, torch.zeros_like(value) if exact else _UNIT * value.abs()
    if isinstance(node, Name):
        return names[node.name]
    return _operation(node.operator, [evaluated(each, names) for each in node.operands])


def _operation(operator: str, parts: list[Rounded]) -> Rounded:  # noqa: PLR0911
    (a, off_a), (b, off_b) = parts[0], parts[1] if len(parts) > 1 else parts[0]
    if operator in ("neg", "abs"):
        return (-a if operator == "neg" else a.abs()), off_a
    if operator == "not":
        return ~a, off_a
    if operator in _COMPARE:
        close = (a - b).abs() <= off_a + off_b
        return _COMPARE[operator](a, b), (close & (off_a + off_b > 0)).to(off_a.dtype)
    if operator in ("and", "or"):
        truth, doubt = parts[0]
        for other, more in parts[1:]:
            truth = truth & other if operator == "and" else truth | other
            doubt = torch.maximum(doubt, more)
        return truth, doubt
    if operator in ("min", "max"):
        choose = torch.minimum if operator == "min" else torch.maximum
        for other, more in parts[1:]:
            a, off_a = choose(a, other), torch.maximum(off_a, more)
        return a, off_a
    if operator == "if":
        return _chosen(parts)
    return _arithmetic(operator, parts)


def _chosen(parts: list[Rounded]) -> Rounded:
    (truth, doubt), (a, off_a), (b, off_b) = parts
    value, off = torch.where(truth, a, b), torch.where(truth, off_a, off_b)
    if a.dtype == torch.bool:
        return value, torch.maximum(off, doubt)
    return value, off + doubt * ((a - b).abs() + off_a + off_b)


def _arithmetic(operator: str, parts: list[Rounded]) -> Rounded:
    (a, off_a), (b, off_b) = parts
    if operator in ("//", "%"):  # of integers, exact until they become floats
        value = torch.floor(a / b) if operator == "//" else a - b * torch.floor(a / b)
        return value, _UNIT * torch.where(value.abs() < 1 << 24, 0.0, value.abs())
    units = 1.0
    if operator in ("+", "-"):
        value, off = (a + b if operator == "+" else a - b), off_a + off_b
    elif operator == "*":
        value, off = a * b, a.abs() * off_b + b.abs() * off_a
    else:
        value, units = a / b, _FEW_OF_EXPRESSIONS
        off = (off_a + value.abs() * off_b) / b.abs()
    return value, off + units * _UNIT * value.abs()


# The value of a score modification's tree on tensors, in PyTorch's own arithmetic.
#
# No operation here makes a tensor from the CPU's data, so calls that use it can be captured into a
# CUDA graph and compiled. `attention_scores.py` has the value with its error.
def modified_scores(node: Node, names: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The value of the tree for tensors `names`; "score" has the whole shape."""
    score = names["score"]
    value = value_of(node, names)
    if not isinstance(value, torch.Tensor):
        return torch.full_like(score, value)
    return value.to(score.dtype).expand(score.shape)


def value_of(node: Node, names: Mapping[str, torch.Tensor]) -> Any:
    """A tensor, or a number if the tree has no names."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Name):
        return names[node.name]
    parts = [value_of(each, names) for each in node.operands]
    operator = node.operator
    if operator in ("min", "max", "if"):
        parts = [_tensor(each, names["score"]) for each in parts]
        if operator == "if":
            return torch.where(*parts)
        smaller = torch.minimum if operator == "min" else torch.maximum
        return functools.reduce(smaller, [each.to(torch.float32) for each in parts])
    return _OPERATIONS[operator](*parts)


def _tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.full_like(like, value, dtype=torch.bool if isinstance(value, bool) else None)


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "neg": lambda a: -a,
    "abs": abs,
    "not": lambda a: (not a) if isinstance(a, bool) else ~a,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "and": lambda *parts: functools.reduce(lambda a, b: a & b, parts),
    "or": lambda *parts: functools.reduce(lambda a, b: a | b, parts),
}
