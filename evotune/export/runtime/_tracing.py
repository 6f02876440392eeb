"""Functions that find out what traces or differentiates a call: torch.compile, torch.export,
PyTorch's forward mode.

torch.compile asks most of them while it traces; its graph keeps the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

_Function = TypeVar("_Function", bound=Callable[..., Any])

NOTES_ARE_TRACED = torch.__version__ >= "2.8"  # PyTorch compares the numbers
"""Whether torch.compile traces code that gives an attribute to a tensor, and code that reads it.
Earlier versions break the graph there."""


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
    """Whether a transform of torch.func runs, which its tensors do not reveal."""
    return torch._C._are_functorch_transforms_active()


def forward_mode() -> bool:
    """Whether PyTorch may compute gradients forwards: tensors may then carry a tangent, and do not
    say that they require grad. torch.compile traces this line, and guards on the level."""
    return forward_ad._current_level >= 0


_looks: list[bool] = []
"""Answers of `_look_at_tensor`, which cannot return one to the code that is traced."""


def is_of_this_graph(tensor: torch.Tensor) -> bool:
    """Whether the graph that torch.compile traces has made the tensor, and no operation of it has
    taken the tensor so far: so nobody has written into it."""
    torch._dynamo.comptime.comptime(_look_at_tensor, _forget_looks)
    return _last_look()


def _look_at_tensor(context: Any) -> None:
    node = context.get_local("tensor").as_proxy().node
    is_made_here = node.op != "placeholder" and node.graph is context.graph()  # a part has its own
    _looks.append(is_made_here and not node.users)


def _forget_looks() -> None:
    """Called when another compiler traces. An abandoned trace may have left a result."""
    _looks.clear()


@decided_while_tracing
def _last_look() -> bool:
    return bool(_looks) and _looks.pop()
