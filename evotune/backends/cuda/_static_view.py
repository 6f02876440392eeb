"""The static view of a cubin: its disassembly by nvdisasm, or its PTX where there is none."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from evotune.backends.base.evidence import EvidenceRequest, StaticView
from evotune.backends.base.instruction_flow import Instruction, count, innermost_loops
from evotune.backends.base.tool_process import Tool
from evotune.backends.cuda import _ptx_view, _sass
from evotune.trial import Json
from evotune.util.scratch import scratch_folder

DISASSEMBLER = "nvdisasm"
INSTALL = "pip install 'evotune[explain]'"
_LIMIT_S = 60.0
_VERSION = re.compile(r"release (\d+\.\d+)")


class NoStaticView(Exception):
    """Why the machine code cannot be read, in one line."""


_TOOL = Tool(DISASSEMBLER, _LIMIT_S, NoStaticView)


def find_disassembler() -> str:
    """nvdisasm's path: on PATH, in a CUDA toolkit, or in a wheel (nvidia-cuda-nvdisasm, triton);
    "" where there is none."""
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
    """`nvdisasm 13.5`; without a number where it does not tell."""
    try:
        found = _VERSION.search(_TOOL.output([path, "--version"]))
    except NoStaticView:
        found = None
    return f"{DISASSEMBLER} {found[1]}" if found else DISASSEMBLER


def static_views(request: EvidenceRequest) -> dict[str, StaticView]:
    """The view of each function of the request's binary, by name. NoStaticView where the binary
    cannot be read in any way."""
    reasons = []
    for path in _disassemblers():  # an older one may not know the GPU
        try:
            functions = _sass.read_functions(_TOOL.output([path, "-c", request.binary]))
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
            ptx = _ptx_view.compiled_ptx(request.compile, folder / "job", _LIMIT_S)
    except _ptx_view.NoPtx as error:
        raise NoStaticView("; ".join([*reasons, str(error)])) from error
    return _views(_ptx_view.read_functions(ptx), request.resources, "ptx")


def _views(
    functions: Mapping[str, Sequence[Instruction]], resources: Mapping[str, Json], source: str
) -> dict[str, StaticView]:
    is_sass = source != "ptx"
    return {
        name: _view(code, resources.get("entries", {}).get(name, resources), source, is_sass)
        for name, code in functions.items()
    }


def _view(
    code: Sequence[Instruction], figures: Mapping[str, Json], source: str, is_sass: bool
) -> StaticView:
    def figure(name: str) -> int:
        return int(figures.get(name, 0))

    waiting: Callable[[Sequence[Instruction]], bool] = _sass.is_waiting
    loops = innermost_loops(code, waiting)
    return StaticView(
        instructions=count(code),
        loop_instructions=count([code[number] for loop in loops for number in loop]),
        registers=figure("registers"),
        spill_load_bytes=figure("spill_load_bytes"),
        spill_store_bytes=figure("spill_store_bytes"),
        static_shared_bytes=figure("static_shared_bytes"),
        code_bytes=len(code) * _sass.INSTRUCTION_BYTES if is_sass else 0,
        source=source,
    )
