"""Questions about who looks at a call: torch.compile, torch.export, PyTorch's forward mode.

torch.compile asks the first two while it traces; its graph keeps the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

_Function = TypeVar("_Function", bound=Callable[..., Any])


def decided_while_tracing(function: _Function) -> _Function:
    """Lets torch.compile call the function while it traces, and keep the answer in the graph. This
    is torch.compiler.assume_constant_result, which would import the compiler, for seconds."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@decided_while_tracing
def is_exporting() -> bool:
    """Whether torch.export traces. In code that torch.compile traces itself,
    torch.compiler.is_exporting() is true under PyTorch 2.11, too. PyTorch 2.6 has no such function:
    there this is also true if some other compiler traces."""
    found = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    return bool(found())


@decided_while_tracing
def is_transformed() -> bool:
    """Whether a transform of torch.func runs, which its tensors do not tell."""
    return torch._C._are_functorch_transforms_active()


def forward_mode() -> bool:
    """Whether PyTorch may compute gradients forwards: tensors may then carry a tangent, and do not
    say that they require grad. torch.compile traces this line, and guards on the level."""
    return forward_ad._current_level >= 0
