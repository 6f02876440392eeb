"""Builds a champion's CUDA sources again in ways that expose races: with delays, and with late
copies.

It runs as `python -m evotune.backends.cuda.perturbed_build JOB FOLDER`, where the file JOB has a
CompileJob. It is a separate process because a compiler can be stopped only by killing its process.
For each way it writes a file into the folder: PTX, which the driver assembles when it loads it, or
the reason why there is none.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cuda.compiler import NvrtcCompiler, nvrtc_version
from evotune.backends.cuda.ptx_late_copies import UnknownCopy, with_late_copies
from evotune.backends.cuda.tool_messages import PERTURBED_BUILD
from evotune.util.channel import UnreadableMessage, decode, encode
from evotune.util.processes import module_command

# --- Puts delays into a kernel's PTX, at random times, wherever its threads wait for each other ---
# Hardware hides races: warps that started together stay close, so a missing barrier often does no
# harm. A warp that sleeps for some microseconds before or after a barrier, another warp each time,
# is
# far behind or ahead of the others, and a missing wait then shows in the results. PTX shows all
# barriers, also those of inline assembly and of Triton, which no macro reaches.
#
# A kernel computes the same with delays, as sleeping changes no value. Delays give asynchronous
# copies more time to land; `ptx_late_copies` finds a wait for too few of them.

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


WAYS = {
    "delays": "with delays before and after barriers",
    "late": "with copies as late as may be",
}
_JOB = "job"
_SELF = "evotune.backends.cuda.perturbed_build"
_FORMS = ("cubin", "ptx")
_NO_REASON = "the build was given up"


def build(job: CompileJob, folder: Path, limit_s: float) -> dict[str, Path | str]:
    """Builds in a separate process. Returns, for each way, the file to load or why there is
    none."""
    (folder / _JOB).write_bytes(encode(job))
    try:
        subprocess.run(
            module_command(_SELF, str(folder / _JOB), str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return dict.fromkeys(WAYS, f"no build within {limit_s:g} s")
    return {way: _found(folder, way) for way in WAYS}


def _found(folder: Path, way: str) -> Path | str:
    for form in _FORMS:
        if (path := folder / f"{way}.{form}").is_file():
            return path
    reason = folder / f"{way}.reason"
    return reason.read_text() if reason.is_file() else _NO_REASON


def main() -> None:
    job_file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        job = decode(PERTURBED_BUILD, job_file.read_bytes())
    except UnreadableMessage as error:
        _write(folder, dict.fromkeys(WAYS, f"the job cannot be read: {error}"))
        return
    ptx: str | CompileFailure
    if job.language == "cuda":
        ptx = NvrtcCompiler().ptx(job)
    else:
        _write(folder, dict.fromkeys(WAYS, f"{job.language} code is not rebuilt"))
        return
    if isinstance(ptx, CompileFailure):
        _write(folder, dict.fromkeys(WAYS, ptx.reason))
        return
    for way, rewrite in {"delays": with_delays, "late": with_late_copies}.items():
        try:
            made, places = rewrite(ptx)
        except UnknownCopy as error:
            _write(folder, {way: str(error)})
            continue
        if not places:
            _write(folder, {way: "the kernel has no such place"})
            continue
        code = cubin_of(made, job.arch)
        form, content = ("ptx", made.encode()) if code is None else ("cubin", code)
        (folder / f"{way}.{form}").write_bytes(content + b"\0")  # CuPy wants the NUL


def _write(folder: Path, reasons: dict[str, str]) -> None:
    for way, reason in reasons.items():
        (folder / f"{way}.reason").write_text(reason)


# Assembles PTX by nvJitLink, NVIDIA's library for linking at run time, without a GPU.
#
# The driver assembles PTX too, but inside the process that loads it, which waits: half a second for
# a kernel. nvJitLink comes with PyTorch's CUDA wheels. Where it is absent, the driver does the
# work.
_PTX = 2  # nvJitLinkInputType
_NAME = b"kernel.ptx"


def cubin_of(ptx: str, arch: str) -> bytes | None:
    """The machine code of the PTX for an architecture such as `sm_90a`. None without nvJitLink, or
    if nvJitLink refuses the PTX; the driver then decides.

    Source: nvJitLink, NVIDIA CUDA documentation, "Basic usage".
    """
    library = _library()
    if library is None:
        return None
    handle = ctypes.c_void_p()
    options = (ctypes.c_char_p * 1)(f"-arch={arch}".encode())
    if library.nvJitLinkCreate(ctypes.byref(handle), ctypes.c_uint32(1), options):
        return None
    try:
        return _linked(library, handle, ptx.encode())
    finally:
        library.nvJitLinkDestroy(ctypes.byref(handle))


def _linked(library: ctypes.CDLL, handle: ctypes.c_void_p, ptx: bytes) -> bytes | None:
    size = ctypes.c_size_t()
    steps: tuple[Callable[[], int], ...] = (
        lambda: library.nvJitLinkAddData(handle, _PTX, ptx, ctypes.c_size_t(len(ptx)), _NAME),
        lambda: library.nvJitLinkComplete(handle),
        lambda: library.nvJitLinkGetLinkedCubinSize(handle, ctypes.byref(size)),
    )
    if any(step() for step in steps):
        return None
    code = ctypes.create_string_buffer(size.value)
    return None if library.nvJitLinkGetLinkedCubin(handle, code) else code.raw


@functools.cache
def _library() -> ctypes.CDLL | None:
    """nvJitLink of NVRTC's major version, which reads its PTX."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        found = load_nvidia_dynamic_lib("nvJitLink")
        library = ctypes.CDLL(found.abs_path or "libnvJitLink.so")
        major, minor = ctypes.c_uint(), ctypes.c_uint()
        if library.nvJitLinkVersion(ctypes.byref(major), ctypes.byref(minor)):
            return None
    except (RuntimeError, OSError, AttributeError):  # it is absent, or too old
        return None
    return library if (major.value, minor.value) >= nvrtc_version() else None


if __name__ == "__main__":
    main()
