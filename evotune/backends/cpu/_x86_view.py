"""The static view of a shared library: its machine code by objdump, for x86-64.

A library is stripped, and the functions that OpenMP makes of parallel regions have no names. So all
of its code counts for the kernel's one entry. Functions begin where a call, an address or a symbol
points to.
"""

from __future__ import annotations

import bisect
import collections
import functools
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evotune.backends.base.evidence import StaticView
from evotune.backends.base.instruction_flow import Instruction, count, innermost_loops
from evotune.backends.base.time_limits import Tool

_PROGRAM = "objdump"
_LIMIT_S = 60.0
_VERSION = re.compile(r"(\d+\.\d+)")
_SECTION = re.compile(r"^Disassembly of section (\S+):")
_LINE = re.compile(r"^ *([0-9a-f]+):\t(?:(?:rep\w*|bnd|notrack|lock|data16|cs) +)*(\S+) *([^#<]*)")
_SYMBOL = re.compile(r"^0*([0-9a-f]+) <([^>+-]+)>:$")
_NEXT_ADDRESS = re.compile(r"# ([0-9a-f]+)\b")
_ADDRESS = re.compile(r"^([0-9a-f]+)\s*$")
_PADDING = ("nop", "nopl", "nopw", "xchg", "int3", "endbr64")
_ENDS = ("ret", "retq", "jmp", "jmpq", "ud2", "hlt")

_FMA = re.compile(r"vf(?:n?m(?:add|sub)|maddsub|msubadd)|vdpbf16ps|tdp|vfcmadd|vfmaddc")
_FLOAT = re.compile(
    r"v?(?:add|sub|addsub|mul|div|max|min|sqrt|rcp(?:14|28)?|rsqrt(?:14|28)?|round|rndscale|scalef"
    r"|cmp\w*|ucomi|comi|reduce|range|getexp|getmant|exp2|hadd|hsub|dp|cvt\w+2)(?P<how>[ps])[sdhb]"
)
_MOVES = re.compile(
    r"v?(?:mov|broadcast|lddqu|gather|scatter|maskmov|extract|insert|pmovzx|pmovsx|expand|compress)"
)
_WIDTHS = (("%zmm", 512), ("%ymm", 256), ("%xmm", 128))


class NoDisassembly(Exception):
    """Why the machine code cannot be read, in one line."""


_TOOL = Tool(_PROGRAM, _LIMIT_S, NoDisassembly)


@dataclass(frozen=True, slots=True)
class _Line:
    """An instruction as objdump prints it: its address, its name and its operands. `points_to` is
    the address that it computes or jumps to; None where there is none."""

    address: int
    name: str
    operands: str
    points_to: int | None


def static_view(binary: str) -> StaticView:
    """The view of the whole library. NoDisassembly where objdump cannot read it."""
    path = shutil.which(_PROGRAM)
    if path is None:
        raise NoDisassembly(f"{_PROGRAM} was not found; fix: install binutils")
    return read_view(_TOOL.output([path, "-d", "--no-show-raw-insn", binary]), _version(path))


def read_view(text: str, source: str) -> StaticView:
    """The view of a disassembly. NoDisassembly where it holds no x86-64 code."""
    if "x86-64" not in text:
        raise NoDisassembly(f"evotune reads {_PROGRAM}'s output only for x86-64")
    lines, symbols = _parse(text)
    functions = _functions(lines, symbols)
    looped = [
        function[number]
        for function in functions
        for loop in innermost_loops(_code(function), _never)
        for number in loop
    ]
    moved = _spills(lines)
    return StaticView(
        instructions=_counts(lines),
        loop_instructions=_counts(looped),
        registers=0,
        spill_load_bytes=moved["load"],
        spill_store_bytes=moved["store"],
        static_shared_bytes=0,
        code_bytes=lines[-1].address - lines[0].address if lines else 0,
        source=source,
        vector_bits=_vector_bits(looped),
    )


def classify(name: str, operands: str) -> str:
    """The class of an instruction by its name and operands, in AT&T's order."""
    if _FMA.match(name):
        return "fma"
    if found := _FLOAT.match(name):
        return "vector" if found["how"] == "p" else "scalar"
    if name.startswith("j") or name.startswith(("call", "ret")):
        return "branch"
    if "(" in operands and _MOVES.match(name):
        return "store" if operands.rstrip().endswith(")") else "load"
    return "other"


def _never(loop: Sequence[Instruction]) -> bool:
    """No loop of a kernel only waits: OpenMP's runtime, which waits, is another library."""
    return False


def _counts(lines: Iterable[_Line]) -> dict[str, int]:
    return count([Instruction(classify(each.name, each.operands)) for each in lines])


def _parse(text: str) -> tuple[list[_Line], set[int]]:
    """The instructions of .text without padding, and the addresses of its symbols."""
    lines: list[_Line] = []
    symbols: set[int] = set()
    section = ""
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section = found[1]
        elif section != ".text":
            continue
        elif found := _SYMBOL.match(line):
            symbols.add(int(found[1], 16))
        elif (found := _LINE.match(line)) and found[2] not in _PADDING:
            lines.append(_Line(int(found[1], 16), found[2], found[3], _points_to(found, line)))
    return lines, symbols


def _points_to(found: re.Match[str], line: str) -> int | None:
    name, operands = found[2], found[3].strip()
    if name.startswith(("j", "call")):
        target = _ADDRESS.match(operands)
        return int(target[1], 16) if target else None
    address = _NEXT_ADDRESS.search(line) if name == "lea" else None
    return int(address[1], 16) if address else None


def _functions(lines: Sequence[_Line], symbols: set[int]) -> list[list[_Line]]:
    called = {
        each.points_to
        for each in lines
        if each.points_to is not None and each.name.startswith(("call", "lea"))
    }
    starts = sorted(symbols | called)
    functions: list[list[_Line]] = []
    begun = 0
    for each in lines:
        before, begun = begun, bisect.bisect_right(starts, each.address)
        if begun > before or not functions:  # a function may begin with padding, such as endbr64
            functions.append([])
        functions[-1].append(each)
    return functions


def _code(function: Sequence[_Line]) -> list[Instruction]:
    places = {each.address: place for place, each in enumerate(function)}
    code = []
    for each in function:
        target = places.get(each.points_to or -1) if each.name.startswith("j") else None
        kind = classify(each.name, each.operands)
        code.append(Instruction(kind, target, each.name not in _ENDS))
    return code


def _vector_bits(lines: Iterable[_Line]) -> dict[str, int]:
    found: collections.Counter[str] = collections.Counter()
    for each in lines:
        kind = classify(each.name, each.operands)
        if kind == "scalar" or (kind == "fma" and each.name[-2:] in ("ss", "sd", "sh")):
            found["scalar"] += 1
        elif kind in ("fma", "vector"):
            found[str(_width_bits(each.operands))] += 1
    return dict(found)


def _width_bits(operands: str) -> int:
    return next((bits for register, bits in _WIDTHS if register in operands), 0)


def _spills(lines: Iterable[_Line]) -> collections.Counter[str]:
    """Bytes of the moves of whole vectors from and to the stack."""
    moved: collections.Counter[str] = collections.Counter()
    for each in lines:
        if "(%rsp)" in each.operands and re.match(r"v?mov[aud]", each.name):
            moved[classify(each.name, each.operands)] += _width_bits(each.operands) // 8
    return moved


@functools.cache
def _version(path: str) -> str:
    found = _VERSION.search(_TOOL.output([path, "--version"]).partition("\n")[0])
    return f"{_PROGRAM} {found[1]}" if found else _PROGRAM
