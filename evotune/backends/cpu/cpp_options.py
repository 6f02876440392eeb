"""Options that a space may give to a C++ compiler in addition to `cpu.FLAGS`.

None of them names a file, loads a plugin or writes anything but the machine code. A compiler that
does not know an option reports it as its own error.
"""

from __future__ import annotations

import re

_SWITCHES = (
    # how exactly arithmetic is done
    *("fast-math", "unsafe-math-optimizations", "associative-math", "reciprocal-math"),
    *("finite-math-only", "signed-zeros", "math-errno", "trapping-math", "rounding-math"),
    # loops and vectors
    *("unroll-loops", "unroll-all-loops", "peel-loops", "split-loops", "tree-vectorize"),
    *("vectorize", "slp-vectorize", "tree-loop-vectorize", "tree-slp-vectorize", "ivopts"),
    *("loop-interchange", "loop-unroll-and-jam", "tree-loop-distribution", "loop-nest-optimize"),
    *("prefetch-loop-arrays", "split-ivs-in-unroller", "variable-expansion-in-unroller"),
    # the rest
    *("semantic-interposition", "inline-functions", "strict-aliasing", "omit-frame-pointer"),
    *("schedule-insns", "schedule-insns2", "rename-registers", "modulo-sched", "gcse-las"),
)
_INSTRUCTIONS = r"sse4\.[12]|avx|avx2|avx512[a-z0-9]+|avxvnni|fma|f16c|bmi2?"
_ALLOWED = re.compile(
    r"-O(?:[0-3s]|fast)"
    rf"|-f(?:no-)?(?:{'|'.join(_SWITCHES)})"
    r"|-ffp-contract=(?:fast|on|off)"
    r"|-fexcess-precision=(?:fast|standard)"
    r"|-fvect-cost-model=(?:unlimited|dynamic|cheap|very-cheap)"
    r"|-mprefer-vector-width=(?:none|128|256|512)"
    r"|-m(?:arch|tune|cpu)=[A-Za-z0-9][A-Za-z0-9._+-]*"
    rf"|-m(?:no-)?(?:{_INSTRUCTIONS})"
)
IN_WORDS = (
    "-O0 to -O3, -Os, -Ofast, -march=NAME, -mtune=NAME, -ffast-math, -funroll-loops, "
    "-ffp-contract=fast and others that name no file (docs/writing-a-kernel.md has the list)"
)


def is_allowed(option: str) -> bool:
    return _ALLOWED.fullmatch(option) is not None
