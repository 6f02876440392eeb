"""The static view of a cubin: its disassembly by nvdisasm, or else its PTX."""

from __future__ import annotations

import collections
import functools
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from evotune.backends.base.evidence import (
    EvidenceRequest,
    Instruction,
    StaticView,
    count,
    innermost_loops,
)
from evotune.backends.base.launch import resources_of
from evotune.backends.base.time_limits import Tool
from evotune.backends.cuda import ptx_view
from evotune.trial import NamedFigures, whole
from evotune.util.files import scratch_folder

DISASSEMBLER = "nvdisasm"
INSTALL = "pip install 'evotune[explain]'"
_LIMIT_S = 60.0
_VERSION = re.compile(r"release (\d+\.\d+)")


class NoStaticView(Exception):
    """Raised if the machine code cannot be read. The message is the reason, one line."""


_TOOL = Tool(DISASSEMBLER, _LIMIT_S, NoStaticView)


def find_disassembler() -> str:
    """nvdisasm's path: on PATH, in a CUDA toolkit, or in a wheel (nvidia-cuda-nvdisasm, triton); ""
    if there is none."""
    return shutil.which(DISASSEMBLER) or next(_installed(), "")


def _disassemblers() -> list[str]:
    """The paths of all, that of `find_disassembler` first."""
    first = find_disassembler()
    return list(dict.fromkeys((first, *_installed()))) if first else []


def _installed() -> Iterator[str]:
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [Path(root) / "bin" for root in roots if root]
    for package, pattern in (("nvidia", "*/bin"), ("triton", "backends/nvidia/bin")):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            folders += sorted(Path(place).glob(pattern), reverse=True)
    for folder in folders:
        if path := shutil.which(DISASSEMBLER, path=str(folder)):
            yield path


@functools.cache
def disassembler_version(path: str) -> str:
    """nvdisasm's name and version, such as `nvdisasm 13.5`, or without a number if it reports
    none."""
    try:
        found = _VERSION.search(_TOOL.output([path, "--version"]))
    except NoStaticView:
        found = None
    return f"{DISASSEMBLER} {found[1]}" if found else DISASSEMBLER


def static_views(request: EvidenceRequest) -> dict[str, StaticView]:
    """The view of each function of the request's binary, by name. Raises NoStaticView if the binary
    cannot be read in any way."""
    reasons = []
    for path in _disassemblers():  # an older one may not know the GPU
        try:
            functions = read_functions(_TOOL.output([path, "-c", request.binary]))
            if functions:
                return _views(functions, request.resources, disassembler_version(path))
            reasons.append(f"{DISASSEMBLER} found no function")
        except NoStaticView as error:
            reasons.append(str(error))
    reasons = reasons[:1] or [f"no {DISASSEMBLER} was found; fix: {INSTALL}"]
    if request.compile is None or request.compile.language != "cuda":
        raise NoStaticView("; ".join(reasons))
    try:
        with scratch_folder() as folder:
            ptx = ptx_view.compiled_ptx(request.compile, folder / "job", _LIMIT_S)
    except ptx_view.NoPtx as error:
        raise NoStaticView("; ".join([*reasons, str(error)])) from error
    return _views(ptx_view.read_functions(ptx), request.resources, "ptx")


def _views(
    functions: Mapping[str, Sequence[Instruction]], resources: NamedFigures, source: str
) -> dict[str, StaticView]:
    is_sass = source != "ptx"
    return {
        name: _view(code, resources_of(name, resources), source, is_sass)
        for name, code in functions.items()
    }


def _view(
    code: Sequence[Instruction], figures: NamedFigures, source: str, is_sass: bool
) -> StaticView:
    def figure(name: str) -> int:
        return whole(figures, name)

    waiting: Callable[[Sequence[Instruction]], bool] = is_waiting
    loops = innermost_loops(code, waiting)
    return StaticView(
        instructions=count(code),
        loop_instructions=count([code[number] for loop in loops for number in loop]),
        registers=figure("registers"),
        spill_load_bytes=figure("spill_load_bytes"),
        spill_store_bytes=figure("spill_store_bytes"),
        static_shared_bytes=figure("static_shared_bytes"),
        code_bytes=len(code) * INSTRUCTION_BYTES if is_sass else 0,
        source=source,
    )


# Reads a disassembly by nvdisasm: the instructions of each kernel function by class.
#
# Classes follow the pipe that executes an instruction (CUDA binary utilities, "Instruction set
# reference"). IMAD runs where FFMA runs, so it counts as `fma`.
INSTRUCTION_BYTES = 16
"""The size of an instruction in bytes, from Volta on."""

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

    IMAD has the class `fma` but is often a plain move, so a waiting loop may have two instructions
    of that class.
    """
    found = collections.Counter(each.kind for each in loop)
    idle = not any(found[kind] for kind in _WORK) and found["fma"] <= 2
    return idle and found["barrier"] > 0 and len(loop) <= _LONGEST_WAIT
