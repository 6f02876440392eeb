"""Puts delays into a kernel's PTX, at random times, wherever its threads wait for each other.

Hardware hides races: warps that started together stay close, so a missing barrier often does no
harm. A warp that sleeps for some microseconds before or after a barrier, another warp each time, is
far behind or ahead of the others, and a missing wait then shows in the results. PTX shows all
barriers, also those of inline assembly and of Triton, which no macro reaches.

A kernel computes the same with delays, as sleeping changes no value. Delays give asynchronous
copies more time to land; `ptx_late_copies` finds a wait for too few of them.
"""

from __future__ import annotations

import re

_PLACES = (
    r"bar(?:rier)?(?:\.cta)?\.(?:sync|arrive|red)",
    r"bar\.warp\.sync",
    r"barrier\.cluster\.(?:arrive|wait)",
    r"mbarrier\.(?:arrive|test_wait|try_wait)",
    r"cp\.async(?:\.bulk)?\.(?:wait_group|wait_all)",
    r"cp\.async\.mbarrier\.arrive",
    r"membar",
    r"fence\.(?:acq_rel|sc)",
    r"atom",
)
_STATEMENT = re.compile(
    # The end of the statement, label or comment before; perhaps a predicate; the place itself.
    r"(?P<before>(?:^|[;{}:])[ \t]*)(?P<statement>(?:@!?%?[\w$]+[ \t]+)?(?:"
    + "|".join(_PLACES)
    + r")[.\s][^;]*;)",
    re.MULTILINE,
)
_LONGEST_NS = 4096
_ONE_IN = 8

# Mixes the clock, the warp's slot and the place in the code, so that each warp sleeps differently.
_DELAY = """
{{
.reg .u32 evotune_a, evotune_b;
.reg .pred evotune_p;
mov.u32 evotune_a, %clock;
mov.u32 evotune_b, %warpid;
mad.lo.u32 evotune_b, evotune_b, 0x9e3779b9, {place};
xor.b32 evotune_a, evotune_a, evotune_b;
mul.lo.u32 evotune_a, evotune_a, 0x85ebca6b;
shr.u32 evotune_b, evotune_a, 15;
xor.b32 evotune_a, evotune_a, evotune_b;
mul.lo.u32 evotune_a, evotune_a, 0xc2b2ae35;
shr.u32 evotune_b, evotune_a, 16;
and.b32 evotune_b, evotune_b, {seldom};
setp.eq.u32 evotune_p, evotune_b, 0;
and.b32 evotune_a, evotune_a, {longest};
@evotune_p nanosleep.u32 evotune_a;
}}
"""


def with_delays(ptx: str) -> tuple[str, int]:
    """The PTX with a delay before and after each place, and how many places there are."""
    count = 0

    def delayed(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        before, after = _delay(2 * count), _delay(2 * count + 1)
        return f"{match['before']}{before}{match['statement']}{after}"

    made = _STATEMENT.sub(delayed, ptx)
    return made, count


def _delay(place: int) -> str:
    return _DELAY.format(
        place=place * 0x61C88647 % (1 << 31), seldom=_ONE_IN - 1, longest=_LONGEST_NS - 1
    )
