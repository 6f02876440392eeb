"""Attention 'kernels' written in Python: called with raw pointers, as machine code would be."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import numpy as np
import torch

from evotune.backends.base.launch import Argument, LaunchPlan, Workspace
from evotune.problems.attention import Attention
from evotune.problems.problem import Case

PROBLEM = Attention("float32")
Compute = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]
Memory = dict[str, np.ndarray]


def make_case(
    seq_len: int, *, causal: bool, heads: int = 2, head_dim: int = 32, seq_len_k: int = 0
) -> Case:
    shape = {
        "batch": 1,
        "heads": heads,
        "head_dim": head_dim,
        "seq_len_q": seq_len,
        "seq_len_k": seq_len_k or seq_len,
    }
    return PROBLEM.case(shape, {"causal": causal})


def plan(*workspaces: Workspace) -> LaunchPlan:
    names = [*("q", "k", "v", "out"), *(workspace.name for workspace in workspaces)]
    kinds = ["tensor"] * 4 + ["workspace"] * len(workspaces)
    arguments = tuple(Argument(kind, name) for kind, name in zip(kinds, names, strict=True))
    return LaunchPlan("python", arguments, workspaces, ())


def kernel(case: Case, compute: Compute, after: Callable[[Memory], None] | None = None):  # type: ignore[no-untyped-def]
    """A kernel that reads q, k, v and writes out through their addresses, then calls `after`.

    The arrays that `after` gets reach one element beyond each end of the buffer.
    """
    shapes = {spec.name: spec.shape for spec in PROBLEM.tensors(case)}

    def launch(*pointers: ctypes.c_void_p) -> None:
        memory: Memory = {}
        for name, pointer in zip((*shapes, "scratch"), pointers, strict=False):
            count = math.prod(shapes.get(name, (4,))) + 2
            assert pointer.value is not None
            memory[name] = np.ctypeslib.as_array(
                (ctypes.c_float * count).from_address(pointer.value - 4)
            )
        inputs = [
            torch.from_numpy(memory[name][1:-1].copy()).reshape(shapes[name])
            for name in ("q", "k", "v")
        ]
        out = compute(*inputs, bool(case.symbols["causal"]))
        memory["out"][1:-1] = out.reshape(-1).numpy()
        if after is not None:
            after(memory)

    return launch


def scores_of(
    q: torch.Tensor, k: torch.Tensor, causal: bool, diagonal: int = 1, scale: float = 1.0
) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * (scale / math.sqrt(q.shape[-1]))
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(diagonal)
        scores = scores.masked_fill(hidden, -math.inf)
    return scores


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    weights = torch.softmax(scores_of(q.double(), k.double(), causal), dim=-1)
    return (weights @ v.double()).float()


def without_last_key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool):  # type: ignore[no-untyped-def]
    return exact(q, k[:, :, :-1], v[:, :, :-1], causal)


def edge_too_early(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool):  # type: ignore[no-untyped-def]
    """Rows miss their last visible key; row 0, which would have none, keeps it."""
    scores = scores_of(q.double(), k.double(), causal, diagonal=0)
    scores[:, :, 0, 0] = 0.0
    return (torch.softmax(scores, dim=-1) @ v.double()).float()


def edge_too_late(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool):  # type: ignore[no-untyped-def]
    scores = scores_of(q.double(), k.double(), causal, diagonal=2)
    return (torch.softmax(scores, dim=-1) @ v.double()).float()


def wrong_scale(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool):  # type: ignore[no-untyped-def]
    scores = scores_of(q.double(), k.double(), causal, scale=1.0001)
    return (torch.softmax(scores, dim=-1) @ v.double()).float()


def no_maximum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool):  # type: ignore[no-untyped-def]
    """A softmax that overflows, and hides that by zeros in place of NaN and infinity."""
    weights = torch.exp(scores_of(q, k, causal))
    return torch.nan_to_num(weights @ v / weights.sum(-1, keepdim=True), nan=0.0, posinf=0.0)


def rounded_weights(dtype: torch.dtype) -> Compute:
    """The unnormalised weights pass through a narrow type, as a kernel on tensor cores does."""

    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        scores = scores_of(q.double(), k.double(), causal)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        rounded = weights.float().to(dtype).double()
        return (rounded @ v.double() / weights.sum(-1, keepdim=True)).float()

    return compute
