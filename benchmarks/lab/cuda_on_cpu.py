"""Lets programs that ask for tensors on "cuda" have them on the CPU, to see that they work."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

_MAKERS = (
    *("arange", "empty", "full", "linspace", "ones", "rand", "randint", "randn", "randperm"),
    *("tensor", "zeros"),
)
_CAPABILITY = (9, 0)
_LITTLE_BYTES = 8 << 30


@contextlib.contextmanager
def cuda_is_the_cpu() -> Iterator[None]:
    """Within it the makers of tensors in `torch` take "cuda" for the CPU, and a GPU of little
    memory seems to be there."""
    with contextlib.ExitStack() as stack:
        for name in _MAKERS:
            made = _on_the_cpu(getattr(torch, name))
            stack.enter_context(mock.patch.object(torch, name, made))
        properties = SimpleNamespace(total_memory=_LITTLE_BYTES, multi_processor_count=1)
        answers = {"get_device_capability": _CAPABILITY, "get_device_properties": properties}
        answers |= {"synchronize": None, "empty_cache": None}
        for name, value in answers.items():
            answer = mock.Mock(return_value=value)
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        yield


def _on_the_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*given: Any, **named: Any) -> Any:
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        return make(*given, **named)

    return made
