"""PyTorch's inductor on the CPU, quick to start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from torch._inductor import config, cpu_vec_isa

_HEADERS = "cpp_cache_precompile_headers"


@contextlib.contextmanager
def quick_inductor() -> Iterator[None]:
    """On a machine that is new to it, inductor compiles a header for ten seconds, and a program for
    each kind of vectors to see whether there is one. Here it does without the header, and asks for
    the oldest kind of an x86 alone."""
    changes = {_HEADERS: False} if hasattr(config, _HEADERS) else {}  # PyTorch 2.6 has none
    with pytest.MonkeyPatch.context() as patch, config.patch(changes):
        patch.setattr(cpu_vec_isa, "supported_vec_isa_list", [cpu_vec_isa.VecAVX2()])
        yield
