"""Options that a space may give to NVRTC, beside `compiler.FLAGS`."""

from __future__ import annotations

import re

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
