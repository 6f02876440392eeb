"""Evidence: facts about a kernel's launches on a device, on which an explanation rests.

Each fact is measured, read from the machine code, or marked as a model. If something is missing,
`Evidence.unavailable` has the reason.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from evotune.backends.base.launch import CompileJob, DeviceProfile, LaunchPlan
from evotune.problems.problem import FLOAT8, INTEGERS, Case, TensorSpec
from evotune.trial import Json, NamedFigures, Value
from evotune.util.files import state_folder

if TYPE_CHECKING:
    import numpy.typing as npt


class EvidenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the evidence of one compiled case.

    - `profile`: the device that measured it, or a model's profile.
    - `dtype`: the problem's dtype.
    - `binary`: the path of the machine code.
    - `resources`: the compiler's figures of that binary.
    - `plan`: the launches of the case, completed with these figures.
    - `tensors`: the buffers of the launches.
    - `indices`: the bytes of the inputs that are lengths, or indices into other tensors.
    - `compile`: the job that made the binary. If no disassembler is found, it is compiled again to
      PTX.
    - `without`: the parts of the evidence to leave out: `counters`, `static`. With all parts,
      gathering takes seconds if counters are permitted.
    """

    profile: DeviceProfile
    dtype: str
    binary: str
    plan: LaunchPlan
    tensors: tuple[TensorSpec, ...]
    indices: Mapping[str, bytes] = {}
    resources: NamedFigures = {}
    compile: CompileJob | None = None
    without: frozenset[str] = frozenset()


class BaselineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the evidence of a baseline on one case.

    - `problem`, `dtype`, `root`: the arguments of `create_problem`.
    - `sha256`: the hash of a problem's file that the user agreed to; "" for a problem without one.
    - `baseline`: its name, one of `Problem.baselines`.
    """

    profile: DeviceProfile
    problem: str
    dtype: str
    case: Case
    baseline: str
    root: str = "."
    sha256: str = ""


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rates that a device reaches; None if the device has no such part, or the rate is
    unknown.

    - `kind`: `measured` by small kernels on this device, or a `model` of published figures.
    - `tensor_flops`: FLOP/s of the tensor cores, dense, in the problem's dtype.
    - `fma_flops`: FLOP/s in float32.
    - `exp2_per_s`: exponentials a second (MUFU).
    - `issue_per_s`: warp instructions a second; on a CPU None.
    - `shared_bytes_per_s`: shared memory, all multiprocessors together.
    - `l2_bytes_per_s`, `dram_bytes_per_s`: bytes read plus bytes written. On a CPU they are
      measured with all threads, which read half of their L2, and copy through memory.
    - `launch_us`: an empty kernel in a graph; on a CPU an empty parallel region.
    - `notes`: doubts about single figures, in words. `evotune explain` prints them.
    """

    kind: Literal["measured", "model"]
    tensor_flops: float | None = None
    fma_flops: float | None = None
    exp2_per_s: float | None = None
    issue_per_s: float | None = None
    shared_bytes_per_s: float | None = None
    l2_bytes_per_s: float | None = None
    dram_bytes_per_s: float | None = None
    launch_us: float | None = None
    notes: tuple[str, ...] = ()


class Occupancy(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of a launch that are resident together.

    - `bound_by`: the resource that keeps more blocks out: `registers`, `shared memory`, `threads`,
      `blocks` (slots of the multiprocessor). If there are several, the first one in this order.
    - `limits`: the blocks that each of these resources would allow.
    - `warps`, `max_warps`: of one multiprocessor.
    - `waves`: blocks of the launch / blocks that are resident on the whole device.
    """

    blocks_per_multiprocessor: int
    bound_by: str
    warps: int
    max_warps: int
    waves: float
    limits: dict[str, int] = {}


GPU_CLASSES = (
    *("tensor", "mufu", "fma", "alu", "shared_load", "shared_store", "global_load"),
    *("global_store", "async_copy", "barrier", "branch", "local", "other"),
)
"""The classes of a GPU's instructions. `local` are spills; `async_copy` are cp.async and TMA."""

CPU_CLASSES = ("fma", "vector", "scalar", "load", "store", "branch", "other")
"""The classes of a CPU's instructions. `vector` and `scalar` are float arithmetic without FMAs."""


class StaticView(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel function's machine code.

    - `instructions`: the count of each class, of `GPU_CLASSES` or `CPU_CLASSES`.
    - `loop_instructions`: the counts inside the innermost loops; {} if they are unknown.
    - `vector_bits`: on a CPU, float instructions in the innermost loops by the width of their
      vectors in bits, as text.
    - `source`: the program or the text that was read: `nvdisasm 12.8`, `objdump 2.40`, `ptx`.
    """

    instructions: dict[str, int]
    loop_instructions: dict[str, int]
    registers: int
    spill_load_bytes: int
    spill_store_bytes: int
    static_shared_bytes: int
    code_bytes: int
    source: str
    vector_bits: dict[str, int] = {}


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Hardware counters of one launch.

    - `source`: the program that read them: `ncu 2025.3`, `perf 6.1`.
    - `pipes`: shares of the peak, 0 to 1: `tensor`, `fma`, `alu`, `mufu`, `lsu`, `issue`, `l2`,
      `dram`, `shared`. Those of a multiprocessor's parts are over the time in which it has work,
      `l2` and `dram` over the whole time.
    - `stalls`: for each reason, the mean cycles for which a warp waits between two instructions.
    - `instructions`: warp instructions executed; on a CPU instructions.
    - `shared_wavefronts`: passes through shared memory; `shared_conflicts`: those beyond the ideal.
    - `warps_active`: the mean share of a multiprocessor's warps that are resident.
    - `multiprocessors_busy`: the share of the time in which a multiprocessor has work.
    """

    source: str
    time_us: float
    pipes: dict[str, float]
    stalls: dict[str, float]
    instructions: float | None = None
    shared_wavefronts: float | None = None
    shared_conflicts: float | None = None
    dram_bytes: float | None = None
    l2_bytes: float | None = None
    registers: int | None = None
    warps_active: float | None = None
    multiprocessors_busy: float | None = None


class LaunchEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one launch. On a CPU `blocks` and `threads` are 1 and the device's threads.

    `shared_bytes` are static and dynamic ones together, of one block.
    """

    kernel: str
    blocks: int
    threads: int
    shared_bytes: int
    occupancy: Occupancy | None = None
    static: StaticView | None = None
    counters: Counters | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All known facts about a case's launches, in their order.

    - `unavailable`: for each missing part (`counters`, `static`, `ceilings`, `occupancy`,
      `launches`), the reason in one line. A part that this kind of device never has is not listed.
    """

    device: str
    ceilings: Ceilings
    launches: tuple[LaunchEvidence, ...]
    unavailable: dict[str, str] = {}

    def to_json(self) -> dict[str, Json]:
        fields: dict[str, Json] = msgspec.to_builtins(self)
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Evidence:
        """Raises ValueError if a value has another type than its field."""
        return msgspec.convert(data, cls)


# Evidence as a run keeps it: of which configuration or baseline, on which case, and its work.
FACT = "evidence"
"""The name of the fact in a run's store that has a list of `GatheredEvidence`."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work that any kernel must do for one case of a problem.

    - `operations`: FLOP.
    - `bytes_moved`: bytes that must cross memory at least once.
    - `exponentials`: exponentials that must be computed; 0 if there are none, or if the problem
      does not say how many.
    """

    operations: int
    bytes_moved: int
    exponentials: int = 0


class GatheredEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence of one kernel on one case.

    - `configuration`: None for a baseline, whose name is `baseline`.
    - `date`: when it was gathered, ISO 8601 in UTC.
    - `resources`: the compiler's figures, as in an outcome.
    """

    case: str
    date: str
    work: Work
    evidence: Evidence
    configuration: Mapping[str, Value] | None = None
    baseline: str = ""
    resources: NamedFigures = {}

    def to_json(self) -> dict[str, Json]:
        fields: dict[str, Json] = msgspec.to_builtins(self)
        return fields

    def same_subject(self, other: GatheredEvidence) -> bool:
        """Whether both belong to the same configuration or baseline on the same case."""
        mine = (self.case, self.baseline, dict(self.configuration or {}))
        return mine == (other.case, other.baseline, dict(other.configuration or {}))


def read_gathered(kept: Json) -> tuple[GatheredEvidence, ...]:
    """The stored list. Raises ValueError if it has another shape."""
    return tuple(msgspec.convert(kept or [], Sequence[GatheredEvidence]))


def merged(kept: Sequence[GatheredEvidence], new: GatheredEvidence) -> list[GatheredEvidence]:
    """The list with `new` added, which replaces older evidence of the same subject."""
    return [*(item for item in kept if not item.same_subject(new)), new]


# Keeps the measured ceilings of devices, in the user's state folder.
#
# ceilings/1234abcd….json    the ceilings; the name is a hash of all on which they depend
_READER = msgspec.json.Decoder(Ceilings)


def kept(facts: Sequence[Value]) -> Ceilings | None:
    """The ceilings that `keep` stored under these facts; None if there are none."""
    path = _path(facts)
    try:
        return _READER.decode(path.read_bytes()) if path else None
    except (OSError, ValueError):
        return None


def keep(facts: Sequence[Value], ceilings: Ceilings) -> None:
    """Stores ceilings under these facts for later processes. Does nothing if the folder is not
    writable."""
    path = _path(facts)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(ceilings))
        os.replace(aside, path)


def _path(facts: Sequence[Value]) -> Path | None:
    folder = state_folder()
    name = hashlib.sha256(json.dumps(list(facts)).encode()).hexdigest()[:32]
    return folder / "ceilings" / f"{name}.json" if folder else None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a function.

    - `kind`: its class.
    - `target`: the number of the instruction that it may branch to; None if it is no branch, or if
      the branch leaves the function or has an unknown target.
    - `falls_through`: whether the next instruction may follow.
    """

    kind: str
    target: int | None = None
    falls_through: bool = True


def count(code: Sequence[Instruction]) -> dict[str, int]:
    """The number of instructions of each class."""
    return dict(collections.Counter(each.kind for each in code))


def innermost_loops(
    code: Sequence[Instruction], is_waiting: Callable[[Sequence[Instruction]], bool]
) -> list[list[int]]:
    """The numbers of the instructions of each innermost loop.

    A loop for which `is_waiting` is true does not count, because a wait for a barrier polls in a
    loop inside the loop that does the work.
    """
    blocks = _blocks(code)
    loops = {
        header: body
        for header, body in _natural_loops(blocks).items()
        if not is_waiting([code[number] for number in _numbers(blocks, body)])
    }
    return [
        sorted(_numbers(blocks, body))
        for header, body in sorted(loops.items())
        if not any(other in body for other in loops if other != header)
    ]


@dataclass(frozen=True, slots=True)
class _Block:
    first: int
    end: int
    successors: tuple[int, ...]


def _numbers(blocks: Sequence[_Block], body: set[int]) -> list[int]:
    return [number for block in body for number in range(blocks[block].first, blocks[block].end)]


def _blocks(code: Sequence[Instruction]) -> list[_Block]:
    """The basic blocks in the order of the code; successors are places in this list."""
    if not code:
        return []
    starts = {0}
    for number, each in enumerate(code):
        if each.target is not None:
            starts.add(each.target)
        if each.target is not None or not each.falls_through:
            starts.add(number + 1)
    firsts = sorted(start for start in starts if start < len(code))
    place = {first: index for index, first in enumerate(firsts)}
    blocks = []
    for first, end in zip(firsts, [*firsts[1:], len(code)], strict=True):
        last = code[end - 1]
        following = [end] if last.falls_through and end in place else []
        if last.target is not None and last.target in place:
            following.append(last.target)
        blocks.append(_Block(first, end, tuple(place[number] for number in following)))
    return blocks


def _natural_loops(blocks: Sequence[_Block]) -> dict[int, set[int]]:
    """Header -> the blocks of its loop, the header included."""
    predecessors: dict[int, list[int]] = collections.defaultdict(list)
    for index, block in enumerate(blocks):
        for successor in block.successors:
            predecessors[successor].append(index)
    order, dominator = _dominators(blocks, predecessors)
    loops: dict[int, set[int]] = {}
    for index in order:
        for header in blocks[index].successors:
            if not _dominates(header, index, dominator):
                continue
            body = loops.setdefault(header, {header})
            waiting = [index]
            while waiting:
                inside = waiting.pop()
                if inside not in body:
                    body.add(inside)
                    waiting += [each for each in predecessors[inside] if each in dominator]
    return loops


def _dominates(header: int, block: int, dominator: Mapping[int, int]) -> bool:
    while block != header:
        if block == dominator[block]:
            return False
        block = dominator[block]
    return True


def _dominators(
    blocks: Sequence[_Block], predecessors: Mapping[int, Sequence[int]]
) -> tuple[list[int], dict[int, int]]:
    """The reachable blocks in reverse postorder, and the immediate dominator of each; the entry is
    its own. Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm"."""
    order = _reverse_postorder(blocks)
    rank = {block: number for number, block in enumerate(order)}
    dominator = {0: 0} if order else {}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [each for each in predecessors[block] if each in dominator]
            found = known[0]
            for other in known[1:]:
                found = _common(found, other, dominator, rank)
            if dominator.get(block) != found:
                dominator[block] = found
                changed = True
    return order, dominator


def _common(one: int, other: int, dominator: Mapping[int, int], rank: Mapping[int, int]) -> int:
    while one != other:
        while rank[one] > rank[other]:
            one = dominator[one]
        while rank[other] > rank[one]:
            other = dominator[other]
    return one


def _reverse_postorder(blocks: Sequence[_Block]) -> list[int]:
    if not blocks:
        return []
    done: list[int] = []
    seen = {0}
    stack = [(0, iter(blocks[0].successors))]
    while stack:
        block, successors = stack[-1]
        following = next((each for each in successors if each not in seen), None)
        if following is None:
            done.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(blocks[following].successors)))
    return done[::-1]


def normal_values(count: int, dtype: str) -> npt.NDArray[Any]:
    """`count` seeded N(0, 1) values. bfloat16, which NumPy lacks, is returned as truncated 16-bit
    words. Integers are small, and 8-bit floats lie between 0.03 and 8."""
    import numpy as np  # here, since a worker that compiles loads this module

    generator = np.random.default_rng(count)
    if dtype in FLOAT8:
        first, end = (0x10, 0x51) if dtype == "float8_e4m3" else (0x28, 0x49)
        return generator.integers(first, end, count, dtype=np.uint8)
    if dtype in INTEGERS:
        return generator.integers(0, 8, count).astype(dtype)
    if dtype == "complex64":
        return generator.standard_normal(2 * count, dtype=np.float32).view(np.complex64)
    values = generator.standard_normal(count, dtype=np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)
