"""Reads a disassembly by nvdisasm: the instructions of each kernel function by class.

Classes follow the pipe that executes an instruction (CUDA binary utilities, "Instruction set
reference"). IMAD runs where FFMA runs, so it counts as `fma`.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence

from evotune.backends.base.instruction_flow import Instruction

INSTRUCTION_BYTES = 16
"""From Volta on."""

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)")
_LABEL = re.compile(r"^(\.L\w+):")
_LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P[T0-9]+)\s+)?([A-Z][A-Z0-9_.]*)([^;]*)")
_TARGET = re.compile(r"`\((\.L\w+)\)")
_NEVER = "@!PT"
_WATERFALL = ".ANY"
"""The end of a branch that repeats one instruction for lanes with other values: it is no loop."""
_WORK = ("tensor", "mufu", "shared_load", "shared_store", "global_store", "async_copy")
_LONGEST_WAIT = 24  # instructions
_ENDS = {"EXIT", "RET", "BRA", "JMP", "BRX", "JMX", "BRXU", "KILL"}
_JUMPS = {"BRA", "JMP"}

_CLASSES = {
    "mufu": ("MUFU",),
    "fma": (
        *("FFMA", "FFMA2", "FMUL", "FMUL2", "FADD", "FADD2", "IMAD", "IMUL", "FFMA32I", "FMUL32I"),
        *("FADD32I", "HFMA2", "HMUL2", "HADD2", "DFMA", "DMUL", "DADD", "FSWZADD", "IDP"),
    ),
    "alu": (
        *("FMNMX", "FMNMX3", "FSETP", "FSEL", "FSET", "FCHK", "IADD3", "IADD", "IADD32I", "LOP3"),
        *("LOP", "LOP32I", "SHF", "SHL", "SHR", "PRMT", "SEL", "ISETP", "IMNMX", "VIMNMX", "LEA"),
        *("MOV", "MOV32I", "VABSDIFF", "VABSDIFF4", "HMNMX2", "HSETP2", "HSET2", "BMSK", "SGXT"),
        *("P2R", "R2P", "PLOP3", "F2FP", "I2FP", "IABS", "VIADD", "VIADDMNMX", "DSETP", "VHMNMX"),
    ),
    "shared_load": ("LDS", "LDSM"),
    "shared_store": ("STS", "STSM", "ATOMS", "STAS"),
    "global_load": ("LDG", "LD"),
    "global_store": ("STG", "ST", "ATOM", "ATOMG", "RED", "REDG"),
    "async_copy": ("LDGSTS",),
    "local": ("LDL", "STL"),
    "barrier": (
        *("BAR", "SYNCS", "WARPSYNC", "DEPBAR", "LDGDEPBAR", "MEMBAR", "FENCE", "ERRBAR", "CCTL"),
        *("WARPGROUP", "ARRIVES", "NANOSLEEP", "UCGABAR_ARV", "UCGABAR_WAIT", "UTMACMDFLUSH"),
        *("CCTLL", "YIELD", "ACQBULK", "UTMACCTL", "USETMAXREG"),
    ),
    "branch": (*_ENDS, "CALL", "BSSY", "BSYNC", "BREAK", "BMOV", "WARPGROUPSET"),
}
_CLASS_OF = {name: kind for kind, names in _CLASSES.items() for name in names}


def classify(opcode: str) -> str:
    """The class of an instruction by its opcode (`LDS.128`)."""
    name = opcode.partition(".")[0]
    if found := _CLASS_OF.get(name):
        return found
    if name.endswith("MMA"):  # HMMA, IMMA, HGMMA, QGMMA, UTCHMMA, …
        return "tensor"
    if name.startswith(("UTMA", "UBLK")):
        return "async_copy"
    return "other"


def read_functions(text: str) -> dict[str, list[Instruction]]:
    """The code of each function, by its name. Padding, and instructions that never execute, are
    left out."""
    lines: dict[str, list[str]] = collections.defaultdict(list)
    function = ""
    for line in text.splitlines():
        if found := _SECTION.match(line):
            function = found[1]
        elif function:
            lines[function].append(line)
    return {name: _read(found) for name, found in lines.items()}


def _read(lines: Sequence[str]) -> list[Instruction]:
    parsed: list[tuple[str, str, str]] = []
    labels: dict[str, int] = {}
    for line in lines:
        if found := _LABEL.match(line):
            labels[found[1]] = len(parsed)
        elif (found := _LINE.match(line)) and found[2] != "NOP" and found[1] != _NEVER:
            parsed.append((found[1] or "", found[2], found[3]))
    code = [_instruction(predicate, name, rest, labels) for predicate, name, rest in parsed]
    # Behind the last exit a branch to itself catches runaway fetches.
    if code and code[-1].target == len(code) - 1:
        code.pop()
    return code


def _instruction(
    predicate: str, opcode: str, operands: str, labels: Mapping[str, int]
) -> Instruction:
    name = opcode.partition(".")[0]
    jumps = name in _JUMPS and not opcode.endswith(_WATERFALL)
    found = _TARGET.search(operands) if jumps else None
    target = labels.get(found[1]) if found else None
    # A jump may have its condition as an operand: `BRA.U !UP0, …`.
    conditional = bool(predicate) or (name in _JUMPS and "," in operands)
    return Instruction(classify(opcode), target, conditional or name not in _ENDS)


def is_waiting(loop: Sequence[Instruction]) -> bool:
    """Whether a loop only waits: for a barrier, a flag in memory, or registers (USETMAXREG).

    IMAD is `fma` and often a plain move, so two of that class may be among its instructions.
    """
    found = collections.Counter(each.kind for each in loop)
    idle = not any(found[kind] for kind in _WORK) and found["fma"] <= 2
    return idle and found["barrier"] > 0 and len(loop) <= _LONGEST_WAIT
