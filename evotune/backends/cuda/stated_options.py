"""Options that a space may give to NVRTC in addition to `compiler.FLAGS`."""

from __future__ import annotations

import re
from collections.abc import Container

_ALLOWED = re.compile(
    r"--use_fast_math|--extra-device-vectorization|--maxrregcount=[1-9][0-9]{0,2}"
    r"|--(?:fmad|ftz|prec-div|prec-sqrt)=(?:true|false)"
)
IN_WORDS = (
    "--use_fast_math, --fmad=, --ftz=, --prec-div=, --prec-sqrt= (true or false), "
    "--maxrregcount=N, --extra-device-vectorization"
)


def is_allowed(option: str) -> bool:
    """Whether a space may give `option` under `options:`. No allowed option names a file."""
    return _ALLOWED.fullmatch(option) is not None


# The parts of a Triton kernel's launch that the compiler decides and a space leaves open.
_NUM_WARPS = "NUM_WARPS"
_DEFAULT_WARPS = 4  # Triton's own default

DECIDED = {
    "block": f"Triton makes its blocks itself, of {_NUM_WARPS} warps",
    "shared_bytes": "Triton knows its shared memory itself",
    "entry": "a Triton kernel is one function: all launches are of it",
}
"""The keys of a Triton kernel's launch that a space must not state, with the reason. Triton
compiles one function at a time, so all launches have the same entry."""

EXTRA_ARGUMENTS = ("int64", "int64")
"""Pointers to scratch memory that Triton's kernels take after their own arguments. The compiler
refuses a kernel that uses such memory. CUDA reads only as many arguments as the kernel takes, so an
older Triton's kernels with fewer pointers work too."""


def block_size(parameters: Container[str]) -> str:
    """The threads of a block, as an expression over the space's `parameters`."""
    return f"32 * {_NUM_WARPS if _NUM_WARPS in parameters else _DEFAULT_WARPS}"
