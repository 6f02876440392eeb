"""PyTorch's state at a call: whether anything but the tensors' values matters to it.

The functions are looked up once, since look-ups cost every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

_Tensor = torch.Tensor
_strided = torch.strided
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_function_mode_at = torch._C._get_function_stack_at
_transforms = torch._C._are_functorch_transforms_active
_tracing_state = torch._C._get_tracing_state
_flash = torch._C._get_flash_sdp_enabled
_efficient = torch._C._get_mem_efficient_sdp_enabled
_cudnn = torch._C._get_cudnn_sdp_enabled


def questions() -> tuple[Any, ...]:
    """The look-ups by which native code determines whether PyTorch is in a plain state. Raises
    AttributeError if this PyTorch lacks one of them.

    The values are: the dictionary that holds the level of forward-mode AD, the name of the level in
    it, three functions that tell whether autocast is on at all, whether it is on for a type of
    device, and to which dtype it casts there, functions that must return false (or 0, or None), and
    functions that must return true.

    More functions must return false than in `are_plain`: a profiler must see an operator, and a
    launch from native code shows it none.
    """
    unwanted: tuple[Callable[[], object], ...] = (
        _dispatch_modes,
        torch._C._is_torch_function_mode_enabled,
        _transforms,
        _tracing_state,
        torch._C._autograd._profiler_enabled,
    )
    wanted = (_flash, _efficient, _cudnn)
    autocast = (
        torch._C._is_any_autocast_enabled,
        torch.is_autocast_enabled,
        torch.get_autocast_dtype,
    )
    return vars(forward_ad), "_current_level", *autocast, unwanted, wanted


def are_plain(*tensors: torch.Tensor) -> bool:
    """Whether they are plain tensors, whose memory holds their values, and no mode or transform
    observes operations on them. A tensor with a tangent of forward-mode AD does not require grad.
    """
    for tensor in tensors:
        if type(tensor) is not _Tensor or tensor.is_nested or tensor.is_neg():
            return False
        if tensor.layout is not _strided:
            return False
    return not (operators_are_seen() or forward_ad._current_level >= 0)


def operators_are_seen() -> bool:
    """Whether a mode, a transform or a trace observes operators. None of these sees a launch."""
    return bool(_dispatch_modes() or _transforms() or _tracing_state() is not None)


def every_backend_is_allowed() -> bool:
    """False inside of `sdpa_kernel`, for one, which names the backend that the user wants."""
    return _flash() and _efficient() and _cudnn()


below_function_modes = torch._C.DisableTorchFunction
"""A block in which no `TorchFunctionMode` sees what is done. Under one, such as a default device,
PyTorch calls Python for each attribute of a tensor that is read, and a decision reads some twenty.
"""


def modes_look_at_calls() -> bool:
    """Whether a mode is on that may want to see a call of SDPA. A default device does not."""
    for place in range(_function_modes()):
        if not isinstance(_function_mode_at(place), DeviceContext):
            return True
    return False
