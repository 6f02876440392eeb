"""Compiles Triton kernels to machine code. Needs no GPU and no driver.

The cubin is launched like any other. Triton usually specializes a kernel at each call by the values
of its arguments. evotune fixes the specialization beforehand: sizes are constexprs if the space
lists them under `define:`, and all pointers are multiples of 16 bytes, because the harness
allocates them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import linecache
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evotune.backends.base.launch import (
    DYNAMIC_SHARED_BYTES,
    MBARRIERS,
    CompileFailure,
    CompileJob,
    uses_mbarriers,
)
from evotune.backends.base.sources import fingerprint, read_sources
from evotune.backends.cuda.compiler import read_figures
from evotune.errors import EnvironmentProblem, SpaceError
from evotune.trial import Json, OutcomeKind
from evotune.user_code import run_content

OLDEST = (3, 4)
NUM_WARPS = "NUM_WARPS"
_OPTIONS = {NUM_WARPS: "num_warps", "NUM_STAGES": "num_stages", "MAXNREG": "maxnreg"}
_DEFAULT_WARPS = 4
_WARP_SIZE = 32
_TYPES = {
    "*float16": "*fp16",
    "*bfloat16": "*bf16",
    "*float32": "*fp32",
    "*float64": "*fp64",
    "*float8_e4m3": "*fp8e4nv",
    "*float8_e5m2": "*fp8e5",
    "*bool": "*i1",
    "*uint8": "*u8",
    "*int8": "*i8",
    "*int16": "*i16",
    "*int32": "*i32",
    "*int64": "*i64",
    "*byte": "*i8",
    "int32": "i32",
    "int64": "i64",
    "float32": "fp32",
    "float64": "fp64",
}
_PARAMETER_BYTES = {"i32": 4, "i64": 8, "fp32": 4, "fp64": 8}
_POINTER_BYTES = 8
_MOST_SCRATCH_POINTERS = 2
_DIVISIBLE_BY_16 = [["tt.divisibility", 16]]
_ENTRY = re.compile(r"\.entry\s+\w+\s*\(([^)]*)\)")
_PARAMETER = re.compile(r"\.param\s+\.[bfus](\d+)")
_TOO_MUCH = re.compile(r"uses too much (?:shared|local|parameter|constant) data|too many registers")
_PACKAGES = ("triton", "pytorch-triton")  # the latter is the name beside torch's nightly builds
_FIX = "fix: pip install 'evotune[triton]' (a CUDA build of torch brings its own)"


class TritonCompiler:
    """See `Compiler` of `backends/base/session.py`. Importing the kernel's file runs the user's
    code.

    Triton cannot be stopped from within: the caller kills this process when compiling takes too
    long.
    """

    def version(self) -> str:
        return f"Triton {_installed_version()}"

    def compile(
        self, job: CompileJob, output: Path, timeout_s: float
    ) -> Mapping[str, Json] | CompileFailure:
        """Returns the figures that `NvrtcCompiler` returns, and the kernel's dynamic shared
        memory."""
        triton = _triton()
        started = time.monotonic()
        printed = io.StringIO()
        try:
            function = _function(job)
            signature, constants, attributes = _specialised(function, job)
            triton.knobs.cache.dir = str(output.parent / "triton")
            source = triton.compiler.ASTSource(function, signature, constants, attributes)
            target = triton.backends.compiler.GPUTarget("cuda", _capability(job.arch), _WARP_SIZE)
            with contextlib.redirect_stdout(printed):
                compiled = triton.compile(source, target=target, options=_options(job))
            _refuse_what_a_launch_lacks(compiled, signature, job)
        except Exception as error:  # noqa: BLE001  user's code, in the process made to run it
            return _failure(error, job, printed.getvalue(), time.monotonic() - started)
        figures = read_figures(printed.getvalue())
        code = compiled.asm["cubin"]
        output.write_bytes(code)
        shared_bytes = int(compiled.metadata.shared)
        return {
            **figures,
            "code_bytes": len(code),
            MBARRIERS: uses_mbarriers(compiled.asm["ptx"]),
            DYNAMIC_SHARED_BYTES: shared_bytes,
        }


class _Unsuitable(Exception):
    """The kernel cannot be compiled for evotune; the message says why."""


def _installed_version() -> str:
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    raise EnvironmentProblem(f"cannot compile Triton kernels: Triton is not installed; {_FIX}")


@functools.cache
def _triton() -> Any:
    """Triton, set up so that the user's environment does not change the machine code."""
    version = _installed_version()
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise EnvironmentProblem(f"Triton {version} is older than {oldest}; {_FIX}")
    for name in [name for name in os.environ if name.startswith("TRITON_")]:
        del os.environ[name]
    try:
        import triton
        import triton.backends.compiler
        import triton.compiler
    except (ImportError, OSError) as error:
        what = " ".join(str(error).split())
        raise EnvironmentProblem(f"Triton does not load ({what}); {_FIX}") from error
    triton.knobs.nvidia.dump_ptxas_log = True  # prints registers and spills, which are read
    triton.knobs.compilation.disable_line_info = True  # else the code names a temporary file
    return triton


def _function(job: CompileJob) -> Any:
    """The function to compile. `_Unsuitable` when the sources differ from the job's hash."""
    sources = read_sources(Path(job.root), job.source)
    if fingerprint(sources) != job.sources_sha256:
        raise _Unsuitable(f"{job.source} changed while the run was going on")
    module = module_of(job.source, sources[job.source])
    function = getattr(module, job.entry, None)
    if function is None:
        raise _Unsuitable(f"{job.source} has no function {job.entry}")
    if not isinstance(function, _triton().runtime.jit.JITFunction):
        raise _Unsuitable(
            f"{job.entry} is not a plain @triton.jit function: remove @triton.autotune and "
            "@triton.heuristics, evotune chooses the values"
        )
    return function


@functools.lru_cache(maxsize=16)
def module_of(name: str, content: bytes) -> Any:
    """The module of these bytes. Triton reads its functions' source through `linecache`, so the
    bytes are put there."""
    sha256 = hashlib.sha256(content).hexdigest()
    # As Python counts lines: `splitlines` would also end one at a form feed.
    lines = io.StringIO(importlib.util.decode_source(content)).readlines()
    linecache.cache[name] = (len(content), None, lines, name)
    return run_content(f"evotune_triton_{sha256[:16]}", name, content)


def _specialised(function: Any, job: CompileJob) -> tuple[dict[str, str], dict[str, int], Any]:
    """Each parameter's type, each constexpr's value, and by position each pointer's attributes."""
    defines = dict(job.defines)
    parameters = list(function.params)
    taken = [parameter.name for parameter in parameters if not parameter.is_constexpr]
    if len(taken) != len(job.signature):
        raise _Unsuitable(
            f"{job.entry} takes {len(taken)} arguments ({', '.join(taken)}) that are not "
            f"constexpr, but 'arguments' lists {len(job.signature)}"
        )
    own = dict(zip(taken, job.signature, strict=True))
    for name, given in own.items():
        if given not in _TYPES:
            raise _Unsuitable(f"{name} is {given.removeprefix('*')}, a type that Triton lacks")
    types = {p.name: "constexpr" if p.is_constexpr else _TYPES[own[p.name]] for p in parameters}
    constants = {}
    for parameter in parameters:
        if parameter.is_constexpr:
            if parameter.name not in defines:
                raise _Unsuitable(
                    f"the constexpr {parameter.name} is neither a parameter of the space nor a "
                    "symbol under 'define'"
                )
            constants[parameter.name] = defines[parameter.name]
    pointers = [i for i, name in enumerate(types) if types[name].startswith("*")]
    return types, constants, {(i,): _DIVISIBLE_BY_16 for i in pointers}


def _options(job: CompileJob) -> dict[str, Any]:
    defines = dict(job.defines)
    chosen = {theirs: defines[ours] for ours, theirs in _OPTIONS.items() if ours in defines}
    if chosen.get("maxnreg") == 0:
        del chosen["maxnreg"]
    # Triton 3.10 will no longer fuse unless asked to; NVRTC always fuses.
    return {"num_warps": _DEFAULT_WARPS, **chosen, "enable_fp_fusion": True}


def _capability(arch: str) -> int:
    found = re.fullmatch(r"sm_(\d+)a?", arch)
    assert found is not None, arch
    return int(found[1])


def _refuse_what_a_launch_lacks(
    compiled: Any, signature: Mapping[str, str], job: CompileJob
) -> None:
    """Refuses a kernel that needs more than the launch provides, which was planned beforehand:
    other warps, scratch memory, or other arguments."""
    metadata = compiled.metadata
    warps = dict(job.defines).get(NUM_WARPS, _DEFAULT_WARPS)
    if metadata.num_warps != warps:
        raise _Unsuitable(
            f"Triton made {metadata.num_warps} warps where {warps} were asked for (warp "
            "specialization), which is not supported"
        )
    for name in ("global_scratch_size", "profile_scratch_size"):
        if getattr(metadata, name, 0):
            raise _Unsuitable(
                "the kernel needs scratch memory that Triton's own launcher allocates (descriptors "
                "made on the device), which is not supported: use pointers"
            )
    wanted = [
        _POINTER_BYTES if kind.startswith("*") else _PARAMETER_BYTES[kind]
        for kind in signature.values()
        if kind != "constexpr"
    ]
    found = parameter_bytes(compiled.asm["ptx"])
    extra = found[len(wanted) :]
    if (
        found[: len(wanted)] != wanted
        or len(extra) > _MOST_SCRATCH_POINTERS
        or set(extra) - {_POINTER_BYTES}
    ):
        raise EnvironmentProblem(
            f"{TritonCompiler().version()} passes arguments in a way that evotune does not know "
            f"(sizes {found}, expected {wanted} and scratch pointers); fix: install another "
            "version, such as 3.6"
        )


def parameter_bytes(ptx: str) -> list[int]:
    """The sizes of the parameters of the entry function, in order."""
    entry = _ENTRY.search(ptx)
    return [int(bits) // 8 for bits in _PARAMETER.findall(entry[1])] if entry else []


def _failure(error: Exception, job: CompileJob, printed: str, seconds: float) -> CompileFailure:
    if isinstance(error, EnvironmentProblem):
        raise error
    log = f"{error}\n{printed}".strip()
    if found := _TOO_MUCH.search(log):
        line = next(line for line in log.splitlines() if found.group() in line)
        return CompileFailure(OutcomeKind.RESOURCE_LIMIT, line.strip(), log, seconds)
    return CompileFailure(OutcomeKind.COMPILE_ERROR, _reason(error, job), log, seconds)


def _reason(error: Exception, job: CompileJob) -> str:
    if isinstance(error, _Unsuitable | SpaceError):
        return str(error)
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    # Triton wraps an error once for each call that led to it; the innermost error says most.
    words = next((w for cause in reversed(chain) if (w := _words(cause))), type(error).__name__)
    return f"{job.source}: {words}"


def _words(error: BaseException) -> str:
    """The error in one line. One of Triton's own errors gives the place in the function and the
    mistake."""
    node, message = getattr(error, "node", None), getattr(error, "error_message", None)
    if node is not None:
        place = f"line {node.lineno} of its function: " if hasattr(node, "lineno") else ""
        return f"{place}{' '.join(message.split())}" if message else ""
    line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
    return " ".join(f"{type(error).__name__}: {error}{line}".split())
