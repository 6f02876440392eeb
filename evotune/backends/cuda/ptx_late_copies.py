"""Rewrites a kernel's PTX so that its asynchronous copies arrive as late as possible.

cp.async may write shared memory at any time until the wait for its group is over. Hardware is fast,
so a wait that leaves one group too many in flight hardly ever shows. In the rewritten PTX each
thread records its copies in its own queue, and makes them when it waits for them. So a read that
comes too early finds the old contents.

Copies that an mbarrier tracks (cp.async.mbarrier.arrive) are made at that arrive; bulk copies (TMA)
stay as they are.
"""

from __future__ import annotations

import re

_ENTRY = re.compile(r"^[^\n]*\.entry\s+[\w$]+\s*\(.*?\)[^{]*\{", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"^[^\n]*\.func\b[^{;]*\{.*?^\}", re.MULTILINE | re.DOTALL)
_ANY = re.compile(r"\bcp\.async\.c[ag]\.")
_START = r"(?P<before>(?:^|[;{}:])[ \t]*)(?:@(?P<negated>!?)(?P<predicate>%?[\w$]+)[ \t]+)?"
_COPY = re.compile(
    _START + r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?P<hints>[.\w:]*)[ \t]+"
    r"\[(?P<to>[^\]]+)\],[ \t]*\[(?P<source>[^\]]+)\],[ \t]*(?P<bytes>\d+)(?P<rest>[^;]*);",
    re.MULTILINE,
)
_COMMIT = re.compile(_START + r"cp\.async\.commit_group[ \t]*;", re.MULTILINE)
_WAIT = re.compile(_START + r"cp\.async\.wait_group[ \t]+(?P<groups>\d+)[ \t]*;", re.MULTILINE)
_ALL = re.compile(_START + r"cp\.async\.wait_all[ \t]*;", re.MULTILINE)
_ARRIVE = re.compile(_START + r"cp\.async\.mbarrier\.arrive[^;]*;", re.MULTILINE)

_ENTRIES = 64  # of a thread's queue, 16 bytes each; when it is full, a copy is made at once
_MARKS = 16  # a wait must leave fewer groups than this under way, as kernels' waits do

# evotune_h and evotune_t count the copies that were noted and made, evotune_c the groups;
# evotune_m holds how many copies were noted when each of the latest groups was closed.
_STATE = f"""
.local .align 16 .b8 evotune_q[{16 * _ENTRIES}];
.local .align 4 .b8 evotune_m[{4 * _MARKS}];
.reg .u32 evotune_h, evotune_t, evotune_c, evotune_u;
mov.u32 evotune_h, 0;
mov.u32 evotune_t, 0;
mov.u32 evotune_c, 0;
"""

_NOTE = """
{{
.reg .u32 eva_n, eva_to, eva_bytes;
.reg .u64 eva_from, eva_at, eva_offset;
.reg .pred eva_full;
{skip}
sub.u32 eva_n, evotune_h, evotune_t;
setp.lt.u32 eva_full, eva_n, {entries};
@eva_full bra evotune_room_{number};
{original}
bra evotune_over_{number};
evotune_room_{number}:
{to}
{source}
{size}
shl.b32 eva_bytes, eva_bytes, 8;
or.b32 eva_bytes, eva_bytes, {bytes};
and.b32 eva_n, evotune_h, {last_entry};
mul.wide.u32 eva_offset, eva_n, 16;
mov.u64 eva_at, evotune_q;
add.u64 eva_at, eva_at, eva_offset;
st.local.u64 [eva_at], eva_from;
st.local.u32 [eva_at+8], eva_to;
st.local.u32 [eva_at+12], eva_bytes;
add.u32 evotune_h, evotune_h, 1;
evotune_over_{number}:
}}
"""

# Makes the oldest copies, byte by byte, until evotune_u copies are made; fills with zeros the bytes
# that the source does not give.
_MAKE = """
{{
.reg .u32 evb_n, evb_to, evb_bytes, evb_given, evb_i, evb_value;
.reg .u64 evb_from, evb_at, evb_offset;
.reg .pred evb_p;
evotune_next_{number}:
setp.ge.s32 evb_p, evotune_t, evotune_u;
@evb_p bra evotune_made_{number};
and.b32 evb_n, evotune_t, {last_entry};
mul.wide.u32 evb_offset, evb_n, 16;
mov.u64 evb_at, evotune_q;
add.u64 evb_at, evb_at, evb_offset;
ld.local.u64 evb_from, [evb_at];
ld.local.u32 evb_to, [evb_at+8];
ld.local.u32 evb_bytes, [evb_at+12];
shr.u32 evb_given, evb_bytes, 8;
and.b32 evb_bytes, evb_bytes, 255;
mov.u32 evb_i, 0;
evotune_byte_{number}:
mov.u32 evb_value, 0;
setp.lt.u32 evb_p, evb_i, evb_given;
@evb_p ld.global.u8 evb_value, [evb_from];
st.shared.u8 [evb_to], evb_value;
add.u64 evb_from, evb_from, 1;
add.u32 evb_to, evb_to, 1;
add.u32 evb_i, evb_i, 1;
setp.lt.u32 evb_p, evb_i, evb_bytes;
@evb_p bra evotune_byte_{number};
add.u32 evotune_t, evotune_t, 1;
bra evotune_next_{number};
evotune_made_{number}:
}}
"""

_CLOSE = """
{{
.reg .u32 evc_n;
.reg .u64 evc_at, evc_offset;
{skip}
and.b32 evc_n, evotune_c, {last_mark};
mul.wide.u32 evc_offset, evc_n, 4;
mov.u64 evc_at, evotune_m;
add.u64 evc_at, evc_at, evc_offset;
st.local.u32 [evc_at], evotune_h;
add.u32 evotune_c, evotune_c, 1;
evotune_over_{number}:
}}
"""

# Makes the copies of all but the latest {groups} groups, that is, of the groups up to
# evotune_c - {groups} - 1, if there is one.
_AWAIT = """
{{
.reg .u32 evc_n;
.reg .u64 evc_at, evc_offset;
.reg .pred evc_p;
{skip}
setp.le.u32 evc_p, evotune_c, {groups};
@evc_p bra evotune_over_{number};
sub.u32 evc_n, evotune_c, {one_more};
and.b32 evc_n, evc_n, {last_mark};
mul.wide.u32 evc_offset, evc_n, 4;
mov.u64 evc_at, evotune_m;
add.u64 evc_at, evc_at, evc_offset;
ld.local.u32 evotune_u, [evc_at];
{make}
evotune_over_{number}:
}}
"""

_AWAIT_ALL = """
{{
{skip}
mov.u32 evotune_u, evotune_h;
{make}
evotune_over_{number}:
}}
"""


class UnknownCopy(Exception):
    """Raised if the PTX has a copy that this module cannot rewrite. The message says which."""


def with_late_copies(ptx: str) -> tuple[str, int]:
    """The PTX with its cp.async copies made as late as possible, and the number of places that
    issue one."""
    if not _ANY.search(ptx):
        return ptx, 0
    known = (_ANY, _COMMIT, _WAIT, _ALL, _ARRIVE)
    for function in _FUNCTION.finditer(ptx):
        if any(each.search(function.group()) for each in known):
            raise UnknownCopy("a function that is called, not inlined, copies or waits for copies")
    writer = _Writer()
    made = ptx
    for pattern, write in (
        (_COPY, writer.copy),
        (_COMMIT, writer.commit),
        (_WAIT, writer.wait),
        (_ALL, writer.wait_all),
        (_ARRIVE, writer.wait_all),
    ):
        made = pattern.sub(write, made)
    if len(_ANY.findall(ptx)) != writer.copies:
        raise UnknownCopy("a copy in a form that is not known")
    return _ENTRY.sub(lambda match: match.group() + _STATE, made), writer.copies


class _Writer:
    """Writes the replacement of each instruction."""

    def __init__(self) -> None:
        self.copies = 0
        self._number = 0

    def copy(self, match: re.Match[str]) -> str:
        self.copies += 1
        operands = [operand.strip() for operand in match["rest"].split(",")[1:]]
        if "cache_hint" in match["hints"]:
            operands = operands[:-1]
        if len(operands) > 1 or any(each.startswith("%p") for each in operands):
            raise UnknownCopy("a copy that is told to ignore its source")
        given = operands[0] if operands else match["bytes"]
        return self._filled(
            match,
            _NOTE,
            to=_address("eva_to", match["to"], "u32"),
            source=_address("eva_from", match["source"], "u64"),
            size=f"mov.u32 eva_bytes, {given};",
            bytes=match["bytes"],
            original=self._original(match),
        )

    def commit(self, match: re.Match[str]) -> str:
        return self._filled(match, _CLOSE) + self._original(match)

    def wait(self, match: re.Match[str]) -> str:
        groups = int(match["groups"])
        if groups >= _MARKS:
            raise UnknownCopy(f"a wait for all but {groups} groups")
        made = self._filled(match, _AWAIT, groups=groups, one_more=groups + 1)
        return made + self._original(match)

    def wait_all(self, match: re.Match[str]) -> str:
        return self._filled(match, _AWAIT_ALL) + self._original(match)

    @staticmethod
    def _original(match: re.Match[str]) -> str:
        return match.group()[len(match["before"]) :]

    def _filled(self, match: re.Match[str], text: str, **values: object) -> str:
        self._number += 1
        skip = ""
        if match["predicate"]:
            other = "" if match["negated"] else "!"
            skip = f"@{other}{match['predicate']} bra evotune_over_{self._number};"
        common: dict[str, object] = {
            "number": self._number,
            "entries": _ENTRIES,
            "last_entry": _ENTRIES - 1,
            "last_mark": _MARKS - 1,
        }
        make = _MAKE.format(**common)
        return match["before"] + text.format(**common, skip=skip, make=make, **values)


def _address(register: str, operand: str, kind: str) -> str:
    """Puts an address, perhaps with an offset, into a register."""
    base, _, offset = operand.replace(" ", "").partition("+")
    moved = f"mov.{kind} {register}, {base};"
    return f"{moved}\nadd.{kind} {register}, {register}, {offset};" if offset else moved
