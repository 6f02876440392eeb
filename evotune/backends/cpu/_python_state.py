"""Settings of Python and PyTorch that a baseline's time depends on, by their names in words.

A candidate is native code in the process that times the baseline, and can call Python's C API.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping

_AUDITED = ("sys.addaudithook", "sys.setprofile", "sys.settrace")
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "number of threads": ("get_num_threads",),
    "number of threads between operations": ("get_num_interop_threads",),
    "precision of float32 products": ("_get_float32_matmul_precision",),
    "use of oneDNN": ("_get_mkldnn_enabled",),
    "backends of attention": (
        *("_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled"),
        *("_get_cudnn_sdp_enabled", "_get_overrideable_sdp_enabled"),
    ),
    "deterministic mode": (
        *("_get_deterministic_algorithms", "_get_deterministic_algorithms_warn_only"),
        "_get_deterministic_fill_uninitialized_memory",
    ),
    "gradient mode": ("is_grad_enabled", "is_inference_mode_enabled", "is_anomaly_enabled"),
    "default type": ("get_default_dtype",),
    "autocast": ("_is_any_autocast_enabled", "is_autocast_cache_enabled"),
    "settings of cuDNN": (
        *("_get_cudnn_enabled", "_get_cudnn_benchmark", "_get_cudnn_deterministic"),
        "_get_cudnn_allow_tf32",
    ),
    "default device, or modes that watch operations": (
        *("_len_torch_dispatch_stack", "_len_torch_function_stack"),
    ),
}
"""By name, functions of torch._C; PyTorch may lack some of them."""


def pytorch_settings() -> dict[str, object]:
    """PyTorch's settings in this thread."""
    found: dict[str, object] = {}
    for name, functions in _functions().items():
        values = tuple(_answer(ask) for ask in functions)
        found[name] = values[0] if len(values) == 1 else values
    return found


def _answer(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except RuntimeError:  # after a mix of two ways to set a precision
        return "unclear"


@functools.cache
def _functions() -> Mapping[str, tuple[Callable[[], object], ...]]:
    import torch

    found: dict[str, tuple[Callable[[], object], ...]] = {
        name: tuple(getattr(torch._C, each) for each in functions if hasattr(torch._C, each))
        for name, functions in _SETTINGS.items()
    }
    found["profiler"] = (torch._C._autograd._profiler_enabled,)
    if precision := getattr(torch._C, "_get_fp32_precision_getter", None):
        asked = (("generic", "all"), ("mkldnn", "all"), ("mkldnn", "matmul"))
        found["precision by library"] = tuple(functools.partial(precision, *each) for each in asked)
    return found


def python_settings() -> dict[str, object]:
    """Settings of Python's interpreter. The first call installs a hook, which stays, since the
    functions that C code installs show in nothing else."""
    _listen()
    return {
        "garbage collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "callbacks of its garbage collector": tuple(map(id, gc.callbacks)),
        "profiler": (_hooks("profile"), _events["sys.setprofile"]),
        "tracer": (_hooks("trace"), _events["sys.settrace"]),
        "tools that monitor it": _monitored(),
        "audit hooks": _events["sys.addaudithook"],
        "switch interval": sys.getswitchinterval(),
    }


def _hooks(kind: str) -> tuple[int, int]:
    return id(getattr(sys, f"get{kind}")()), id(getattr(threading, f"get{kind}")())


def _monitored() -> object:
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    if monitoring is None:
        return ()
    named = {tool: monitoring.get_tool(tool) for tool in range(6)}
    return [(name, monitoring.get_events(tool)) for tool, name in named.items() if name]


_events: Counter[str] = Counter()


@functools.cache
def _listen() -> None:
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in _AUDITED and threading.current_thread() is threading.main_thread():
        _events[event] += 1
