"""Gathers the evidence of a kernel's call on this machine's processor, and of a baseline's.

Hardware counters come from Linux's `perf stat`. The static view of a shared library is its machine
code by objdump, for x86-64. A library is stripped, and the functions that OpenMP makes of parallel
regions have no names. So all of its code counts for the kernel's one entry. Functions begin where a
call, an address or a symbol points to.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from evotune.backends.base import evidence
from evotune.backends.base.backend import SanitizedCase
from evotune.backends.base.evidence import (
    BaselineRequest,
    Ceilings,
    Counters,
    Evidence,
    EvidenceRequest,
    Instruction,
    LaunchEvidence,
    StaticView,
    count,
    innermost_loops,
)
from evotune.backends.base.launch import DeviceProfile
from evotune.backends.base.time_limits import Tool
from evotune.backends.cpu import counted_run, cpu_ceiling_run, cpu_profile
from evotune.backends.cpu.counted_run import BASELINE, KERNEL
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cpu.cpu_profile import cpuinfo
from evotune.errors import EnvironmentProblem
from evotune.util.channel import encode
from evotune.util.files import scratch_folder
from evotune.util.processes import module_command

_REVISION = 2
"""Increase it when the loops, the way of measuring or the stored figures change."""
_BINARY = "the baseline's machine code is not read"


class _NotMeasured(Exception):
    """The ceilings could not be measured; the message is one line with the reason."""


def gather(request: EvidenceRequest) -> Evidence:
    """See `Backend.gather_evidence`."""
    missing: dict[str, str] = {}
    launch = _launch(request.plan.entry, request.profile)
    if "static" not in request.without:
        try:
            view = static_view(request.binary)
            launch = msgspec.structs.replace(launch, static=view)
        except NoDisassembly as error:
            missing["static"] = str(error)
    case = SanitizedCase(request.binary, request.plan, request.tensors, request.indices)
    counted = "counters" not in request.without
    return _gathered(request.profile, launch, encode(case) if counted else b"", KERNEL, missing)


def gather_baseline(request: BaselineRequest) -> Evidence:
    """See `Backend.gather_baseline_evidence`."""
    missing = {"static": _BINARY}
    launch = _launch(request.baseline, request.profile)
    return _gathered(request.profile, launch, encode(request), BASELINE, missing)


def _launch(kernel: str, profile: DeviceProfile) -> LaunchEvidence:
    threads = int(profile.attributes.get("threads", 1))
    return LaunchEvidence(kernel=kernel, blocks=1, threads=threads, shared_bytes=0)


def _gathered(
    profile: DeviceProfile, launch: LaunchEvidence, job: bytes, kind: str, missing: dict[str, str]
) -> Evidence:
    """The evidence with ceilings and, if there is a `job`, counters; `missing` gets the reason for
    each part that is not available."""
    here = cpu_profile.profile(launch.threads)
    ceilings = modelled(profile)
    if (profile.name, profile.arch) != (here.name, here.arch):
        missing["ceilings"] = missing["counters"] = f"this machine has no {profile.name}"
    else:
        try:
            ceilings = measured(here)
        except _NotMeasured as error:
            missing["ceilings"] = str(error)
        if job:
            try:
                counted = counters(kind, job, ceilings, launch.threads)
                launch = msgspec.structs.replace(launch, counters=counted)
            except NotCounted as error:
                missing["counters"] = str(error)
    return Evidence(device=profile.name, ceilings=ceilings, launches=(launch,), unavailable=missing)


def modelled(profile: DeviceProfile) -> Ceilings:
    """The ceilings of a processor that is not this machine's: only one of them is known."""
    note = "an upper bound for any processor with these vectors, not measured"
    flops = profile.peak_gflops * 1e9
    return Ceilings(kind="model", fma_flops=flops or None, notes=(note,))


def measured(profile: DeviceProfile) -> Ceilings:
    """The ceilings of this machine, from an earlier measurement or measured now, in about two
    seconds. Raises _NotMeasured if that fails."""
    try:
        compiler = CpuCompiler().version()
    except EnvironmentProblem as error:
        raise _NotMeasured(str(error)) from error
    threads = int(profile.attributes["threads"])
    facts = (_REVISION, profile.name, profile.arch, threads, compiler)
    found = evidence.kept(facts)
    if found is None:
        found = _measure(threads)
        evidence.keep(facts, found)
    return found


def _measure(threads: int) -> Ceilings:
    try:
        done = subprocess.run(
            module_command("evotune.backends.cpu.cpu_ceiling_run"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=cpu_ceiling_run.LIMIT_S,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
    except subprocess.TimeoutExpired as error:
        most_s = cpu_ceiling_run.LIMIT_S
        raise _NotMeasured(f"the ceilings were not measured within {most_s:g} s") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        words = done.stderr.strip().splitlines()
        last = words[-1] if words else f"status {done.returncode}"
        raise _NotMeasured(f"the ceilings could not be measured: {last}")
    return msgspec.convert({"kind": "measured", **json.loads(lines[-1])}, Ceilings)


_PROGRAM = "perf"
_VERSION = re.compile(r"(\d+\.\d+)")
_LINE_BYTES = 64
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
NOT_INSTALLED = "perf was not found; fix: install linux-perf (Debian) or linux-tools (Ubuntu)"
NOT_SUPPORTED = "this machine gives no hardware counters, like many virtual machines"

_INSTRUCTIONS, _CYCLES = "instructions", "cycles"
_L1_MISSES, _L3_MISSES = "L1-dcache-load-misses", "LLC-load-misses"
_EVENTS = (_INSTRUCTIONS, _CYCLES, _L1_MISSES, _L3_MISSES)
_FLOPS = {
    "fp_arith_inst_retired.512b_packed_single": 16,
    "fp_arith_inst_retired.256b_packed_single": 8,
    "fp_arith_inst_retired.128b_packed_single": 4,
    "fp_arith_inst_retired.scalar_single": 1,
}
"""Intel's counters of float32 arithmetic, with the FLOPs of each count. An FMA counts twice."""


class NotCounted(Exception):
    """Raised if there are no counters. The message is the reason, one line."""


_TOOL = Tool(_PROGRAM, counted_run.LIMIT_S, NotCounted)


def find_perf() -> str:
    return shutil.which(_PROGRAM) or ""


@functools.cache
def perf_version(path: str) -> str:
    """perf's name and version, such as `perf 6.1`."""
    found = _VERSION.search(_perf([path, "--version"]).stdout)
    return f"{_PROGRAM} {found[1]}" if found else _PROGRAM


def counters(kind: str, job: bytes, ceilings: Ceilings, threads: int = 0) -> Counters:
    """The counters of one call of a kernel or a baseline with this number of `threads` (0:
    `cpu_profile.threads`); see `counted_run` for the first two arguments. Raises NotCounted if
    there are none."""
    path = find_perf()
    if not path:
        raise NotCounted(NOT_INSTALLED)
    source = perf_version(path)
    intel = cpuinfo("vendor_id") == "GenuineIntel"
    with scratch_folder() as folder:
        (folder / "job").write_bytes(job)
        done = None
        if intel:
            done = _counted(path, (*_EVENTS, *_FLOPS), kind, folder, threads)
        if done is None or "event syntax error" in done.stderr:
            done = _counted(path, _EVENTS, kind, folder, threads)
        table = folder / "table"
        text = table.read_text() if table.exists() else ""
    told = [line for line in done.stdout.splitlines() if line.startswith("{")]
    counts = read_counts(text)
    if not told:  # the program failed, and its events look like forbidden ones
        raise NotCounted(reason("", done.stderr))
    if _INSTRUCTIONS not in counts:
        raise NotCounted(reason(text, done.stderr))
    call = json.loads(told[-1])
    return _of_one_call(counts, call["calls"], call["time_us"], source, ceilings)


def permission() -> tuple[str, str]:
    """perf with its version, and why it may not count on this machine; "" if it may."""
    path = find_perf()
    version = perf_version(path)
    done = _perf([path, "stat", "-x,", "-e", _INSTRUCTIONS, "true"])
    counts = read_counts(done.stderr)
    return version, "" if _INSTRUCTIONS in counts else reason(done.stderr, done.stderr)


def _counted(
    path: str, events: Sequence[str], kind: str, folder: Path, threads: int
) -> subprocess.CompletedProcess[str]:
    control, acknowledge = folder / "control", folder / "acknowledge"
    for pipe in (control, acknowledge):
        with contextlib.suppress(FileExistsError):
            os.mkfifo(pipe)
    program = module_command(
        "evotune.backends.cpu.counted_run", kind, *map(str, (folder / "job", control, acknowledge))
    )
    options = ["--delay=-1", "--control", f"fifo:{control},{acknowledge}"]
    options += ["-o", str(folder / "table")]
    return _perf([path, "stat", "-x,", "-e", ",".join(events), *options, "--", *program], threads)


def _perf(command: Sequence[str], threads: int = 0) -> subprocess.CompletedProcess[str]:
    wished = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    return _TOOL.run(command, {**os.environ, **wished, "LC_ALL": "C"})


def read_counts(table: str) -> dict[str, float]:
    """The count of each event in perf's table (`-x,`). An event that was not counted is left
    out."""
    counts: dict[str, float] = {}
    for line in table.splitlines():
        fields = line.split(",")
        if len(fields) < 3:
            continue
        with contextlib.suppress(ValueError):
            counts[fields[2].partition(":")[0]] = float(fields[0])
    return counts


def reason(table: str, errors: str) -> str:
    """Why perf counted nothing, in one line."""
    if "<not supported>" in table:
        return NOT_SUPPORTED
    if "perf_event_paranoid" in errors or "No permission" in errors or "<not counted>" in table:
        level = _PARANOID.read_text().strip() if _PARANOID.exists() else "?"
        return (
            f"this user may not read counters (perf_event_paranoid is {level}); "
            "fix: sysctl kernel.perf_event_paranoid=2"
        )
    words = [line.strip() for line in errors.splitlines() if line.strip()]
    told = [line for line in words if not line.startswith("Events ")]
    return f"{_PROGRAM}: {told[-1]}" if told else f"{_PROGRAM} counted nothing"


def _of_one_call(
    counts: Mapping[str, float], calls: float, time_us: float, source: str, ceilings: Ceilings
) -> Counters:
    def each(event: str, unit: float = 1.0) -> float | None:
        return counts[event] / calls * unit if event in counts else None

    dram_bytes, l2_bytes = each(_L3_MISSES, _LINE_BYTES), each(_L1_MISSES, _LINE_BYTES)
    flops = sum(counts[event] / calls * worth for event, worth in _FLOPS.items() if event in counts)
    rates = (
        ("fma", flops, ceilings.fma_flops),
        ("l2", l2_bytes, ceilings.l2_bytes_per_s),
        ("dram", dram_bytes, ceilings.dram_bytes_per_s),
    )
    seconds = time_us / 1e6
    return Counters(
        source=source,
        time_us=time_us,
        pipes={name: done / seconds / peak for name, done, peak in rates if done and peak},
        stalls={},
        instructions=each(_INSTRUCTIONS),
        dram_bytes=dram_bytes,
        l2_bytes=l2_bytes,
    )


_DISASSEMBLER = "objdump"
_LIMIT_S = 60.0
_DISASSEMBLER_VERSION = re.compile(r"(\d+\.\d+)")
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
    """Raised if the machine code cannot be read. The message is the reason, one line."""


_DISASSEMBLER_TOOL = Tool(_DISASSEMBLER, _LIMIT_S, NoDisassembly)


@dataclass(frozen=True, slots=True)
class _Line:
    """An instruction as objdump prints it: its address, its name and its operands. `points_to` is
    the address that it computes or jumps to, or None."""

    address: int
    name: str
    operands: str
    points_to: int | None


def static_view(binary: str) -> StaticView:
    """The view of the whole library. Raises NoDisassembly if objdump cannot read it."""
    path = shutil.which(_DISASSEMBLER)
    if path is None:
        raise NoDisassembly(f"{_DISASSEMBLER} was not found; fix: install binutils")
    return read_view(
        _DISASSEMBLER_TOOL.output([path, "-d", "--no-show-raw-insn", binary]), _version(path)
    )


def read_view(text: str, source: str) -> StaticView:
    """The view of a disassembly. Raises NoDisassembly if it has no x86-64 code."""
    if "x86-64" not in text:
        raise NoDisassembly(f"evotune reads {_DISASSEMBLER}'s output only for x86-64")
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
    found = _DISASSEMBLER_VERSION.search(
        _DISASSEMBLER_TOOL.output([path, "--version"]).partition("\n")[0]
    )
    return f"{_DISASSEMBLER} {found[1]}" if found else _DISASSEMBLER
