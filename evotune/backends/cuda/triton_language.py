"""A launch whose kernel Triton compiles: the space leaves to the compiler what it decides."""

from __future__ import annotations

from collections.abc import Container

_NUM_WARPS = "NUM_WARPS"  # Triton's own name for it, and its own value where nobody says another
_DEFAULT_WARPS = 4

DECIDED = {
    "block": f"Triton makes its blocks itself, of {_NUM_WARPS} warps",
    "shared_bytes": "Triton knows its shared memory itself",
    "entry": "a Triton kernel is one function: all launches are of it",
}
"""Keys of a launch that a space must not state. A second function is compiled apart."""

EXTRA_ARGUMENTS = ("int64", "int64")
"""Pointers that Triton's kernels take after their own arguments, to scratch memory that none of
those that the compiler lets pass has use for. CUDA reads as many arguments as the kernel takes, so
more than an older Triton has do no harm."""


def block_size(parameters: Container[str]) -> str:
    """Threads of a block, as an expression over the space's `parameters`."""
    return f"32 * {_NUM_WARPS if _NUM_WARPS in parameters else _DEFAULT_WARPS}"
