"""Questions that torch.compile asks while it traces, and whose answers its graph keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def decided_while_tracing(function: _Function) -> _Function:
    """Lets torch.compile call the function while it traces, and keep the answer in the graph. This
    is torch.compiler.assume_constant_result, which would import the compiler, for seconds."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@decided_while_tracing
def is_exporting() -> bool:
    """Whether torch.export traces. In code that torch.compile traces itself,
    torch.compiler.is_exporting() is true under PyTorch 2.11, too."""
    return torch.compiler.is_exporting()
