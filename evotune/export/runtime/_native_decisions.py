"""Answers the native launcher, which asks once for each case what serves it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch

from ._attention_package import ALIGNMENT, AttentionKernels, Call, Served
from ._missed import Missed
from ._plain_state import questions

_MOST_DECISIONS = 4096


def given_scale(scale: float) -> float | None:
    """The scale that a caller gave, from the scale that native code passes on; None if the caller
    gave none.

    Native code passes on a positive NaN in place of None. A NaN that the caller gave is negative.
    """
    return None if math.isnan(scale) and math.copysign(1.0, scale) > 0 else scale


class NativeDecisions:
    """What native code was told, and the calls that it has counted."""

    def __init__(self, kernels: AttentionKernels, native: Any) -> None:
        self._kernels = kernels
        self._native = native
        self._told: list[tuple[int, Served | Missed]] = []
        self._forgotten: list[tuple[int, Served | Missed]] = []
        self._calls = 0
        self._lock = threading.Lock()

    def function(self) -> Callable[..., Any] | None:
        """A function of Python that native code implements (`Native.function`)."""
        try:
            state = questions()
        except AttributeError:
            return None
        plain = (torch.Tensor, float, None, True, False, "requires_grad")
        asked = (torch.empty_like, torch.Tensor.is_neg, self.decide, self._kernels.serve)
        found: Callable[..., Any] | None = self._native.function((*plain, *asked, *state))
        return found

    def decide(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        is_causal: bool,
        scale: float,
        enable_gqa: bool,
    ) -> int:
        """Tells native code what serves a call, in the same thread in which that asks."""
        call = Call(q, k, v, is_causal, given_scale(scale), enable_gqa)
        self._forget(least=_MOST_DECISIONS)
        decision = self._kernels.decide(call)
        if isinstance(decision, Served) and any(t.data_ptr() % ALIGNMENT for t in call[:3]):
            decision = self._kernels.misaligned(call)
        if isinstance(decision, Missed):
            decision.count(0)
            number = self._native.add_miss()
        else:
            same = q.shape[3] == v.shape[3]  # the only output that native code makes
            add = self._native.add if same else self._native.add_python
            number = add(decision.launch, torch.empty_like(q))
        with self._lock:
            self._told.append((number, decision))
        return 0

    def forget(self) -> None:
        """Has native code ask again about every case. Its counts stay."""
        self._forget(least=0)

    def _forget(self, least: int) -> None:
        """Does nothing if native code was told fewer than `least` decisions. A call that has begun
        counts for the decision that it found, so decisions are dropped the next time."""
        with self._lock:
            if len(self._told) < least:
                return
            self._native.forget()
            dropped, self._forgotten, self._told = self._forgotten, self._told, []
        self._collect(dropped)
        for number, _ in dropped:
            self._native.drop(number)

    def collect(self) -> None:
        """Adds the calls since the last time to the misses and to `calls`."""
        with self._lock:
            told = [*self._forgotten, *self._told]
        self._collect(told)

    def _collect(self, told: list[tuple[int, Served | Missed]]) -> None:
        for number, decision in told:
            times = self._native.calls(number)
            if not times:
                continue
            if isinstance(decision, Missed):
                decision.count(times)
            else:
                with self._lock:
                    self._calls += times

    def calls(self) -> int:
        """The number of calls that native code served."""
        self.collect()
        return self._calls
