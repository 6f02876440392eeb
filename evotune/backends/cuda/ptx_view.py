"""Reads PTX, the instructions of each kernel function by class, if no disassembler is found.

PTX has the tensor core, MUFU and memory instructions of the machine code, but it shows neither
spills nor what ptxas unrolls, moves and merges.

NVRTC may crash or hang, so it runs in a separate process: `python -m evotune.backends.cuda.ptx_view
JOB` prints the PTX of the CompileJob in the file JOB.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from evotune.backends.base.evidence import Instruction
from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.backends.cuda.tool_messages import PERTURBED_BUILD
from evotune.errors import EnvironmentProblem
from evotune.util.channel import UnreadableMessage, decode, encode
from evotune.util.processes import module_command

_SELF = "evotune.backends.cuda.ptx_view"

_CLASSES = (
    ("tensor", r"(?:wgmma|tcgen05)\.mma|wmma\.mma|mma\."),
    ("mufu", r"ex2\.|lg2\.|sin\.|cos\.|rcp\.|rsqrt\.|sqrt\.approx|tanh\.|div\.(?:approx|full)"),
    ("async_copy", r"cp\.(?:async|reduce)\.(?!wait|commit|mbarrier|bulk\.(?:wait|commit))"),
    (
        "barrier",
        r"bar\.|barrier|mbarrier|membar|fence|cp\.async|wgmma|nanosleep|setmaxnreg"
        r"|griddepcontrol",
    ),
    ("shared_load", r"(?:ld|ldmatrix).*\.shared"),
    ("shared_store", r"(?:st|stmatrix|atom|red).*\.shared"),
    ("local", r"(?:ld|st)(?:\.\w+)*\.local"),
    ("other", r"ld(?:\.\w+)*\.(?:param|const)|st(?:\.\w+)*\.param"),
    ("global_load", r"ld(?:u)?\."),
    ("global_store", r"st\.|atom\.|red\."),
    ("branch", r"bra\b|brx|ret\b|exit\b|call|trap\b"),
    ("fma", r"fma\.|mad|(?:add|sub|mul)(?:\.\w+)*\.(?:f|bf)\d|mul\."),
    (
        "alu",
        r"add|sub|min|max|setp|set\.|selp|slct|and\.|or\.|xor\.|not\.|neg\.|abs\.|shl|shr|shf|lop3"
        r"|prmt|bfe|bfi|bfind|mov|cvt|cnot|sad|popc|clz|brev|copysign",
    ),
)
_CLASS = tuple((kind, re.compile(pattern)) for kind, pattern in _CLASSES)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BEFORE = re.compile(r"\s*(?:[{}]|([\w$]+):(?!:))")  # a brace of a block, or a label
_STATEMENT = re.compile(r"\s*(?:(@!?%?[\w$]+)\s+)?([a-z][\w.:]*)(.*)", re.DOTALL)
_ENDS = ("bra", "ret", "exit", "brx", "trap")


class NoPtx(Exception):
    """Raised if a job's PTX cannot be made. The message is the reason, one line."""


def compiled_ptx(job: CompileJob, file: Path, limit_s: float) -> str:
    """The job's PTX. The job is passed in `file`. Raises NoPtx if there is none."""
    file.write_bytes(encode(job))
    try:
        done = subprocess.run(
            module_command(_SELF, str(file)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoPtx(f"no PTX within {limit_s:g} s") from error
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise NoPtx(words[-1] if words else f"NVRTC ended with status {done.returncode}")
    return done.stdout


def classify(opcode: str) -> str:
    """The class of a PTX instruction by its opcode (`ld.shared.v4.u32`)."""
    return next((kind for kind, pattern in _CLASS if pattern.match(opcode)), "other")


def read_functions(ptx: str) -> dict[str, list[Instruction]]:
    """The code of each kernel function, by its name."""
    text = _COMMENT.sub("", ptx)
    starts = list(_ENTRY.finditer(text))
    ends = [each.start() for each in starts[1:]] + [len(text)]
    return {
        found[1]: _read(text[text.index("{", found.end()) : end])
        for found, end in zip(starts, ends, strict=True)
    }


def _read(body: str) -> list[Instruction]:
    parsed: list[tuple[str, str, str]] = []
    labels: dict[str, int] = {}
    for statement in body.split(";"):
        place = 0
        while (found := _BEFORE.match(statement, place)) is not None:
            place = found.end()
            if found[1]:
                labels[found[1]] = len(parsed)
        if (found := _STATEMENT.match(statement, place)) is not None:
            parsed.append((found[1] or "", found[2], found[3].strip()))
    return [_instruction(*each, labels) for each in parsed]


def _instruction(
    predicate: str, opcode: str, operands: str, labels: Mapping[str, int]
) -> Instruction:
    name = opcode.partition(".")[0]
    target = labels.get(operands) if name == "bra" else None
    return Instruction(classify(opcode), target, bool(predicate) or name not in _ENDS)


def main() -> None:
    try:
        job = decode(PERTURBED_BUILD, Path(sys.argv[1]).read_bytes())
        ptx = NvrtcCompiler().ptx(job)
    except (UnreadableMessage, EnvironmentProblem) as error:
        sys.exit(str(error))
    if isinstance(ptx, CompileFailure):
        sys.exit(ptx.reason)
    print(ptx)


if __name__ == "__main__":
    main()
