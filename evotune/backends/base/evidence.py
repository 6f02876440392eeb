"""Evidence: facts about a kernel's launches on a device, on which an explanation rests.

Each fact is measured or read from the machine code, or is named as a model. Where something is
missing, `Evidence.unavailable` has the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from evotune.backends.base.launch import CompileJob, LaunchPlan
from evotune.backends.base.profile import DeviceProfile
from evotune.problems.problem import Case, TensorSpec
from evotune.trial import Json, NamedFigures, Value
from evotune.util.files import state_folder

# --- Requests -------------------------------------------------------------------------------------


class EvidenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the evidence of one compiled case.

    - `profile`: the device that measured it, or a model's profile.
    - `dtype`: the problem's.
    - `binary`: the path of the machine code.
    - `resources`: the compiler's figures of that binary.
    - `plan`: the launches of the case, completed with these figures.
    - `tensors`: the buffers that they work on.
    - `indices`: the bytes of the inputs that are lengths or places in others.
    - `compile`: the job that made the binary. Where no disassembler is found, it is compiled again,
      to PTX.
    - `without`: the parts of the evidence that are not wanted: `counters`, `static`. The default
      takes seconds where counters are permitted.
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

    - `problem`, `dtype`, `root`: name the problem as `create_problem` takes them.
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


# --- Facts about a device -------------------------------------------------------------------------


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rates that a device reaches; None where it has no such part or nobody knows.

    - `kind`: `measured` by small kernels on this device, or a `model` of published figures.
    - `tensor_flops`: FLOP/s of the tensor cores, dense, in the problem's dtype.
    - `fma_flops`: FLOP/s in float32.
    - `exp2_per_s`: exponentials a second (MUFU).
    - `issue_per_s`: warp instructions a second; on a CPU None.
    - `shared_bytes_per_s`: shared memory, all multiprocessors together.
    - `l2_bytes_per_s`, `dram_bytes_per_s`: bytes read plus bytes written. On a CPU all threads read
      half of their L2, and copy through memory.
    - `launch_us`: an empty kernel in a graph; on a CPU an empty parallel region.
    - `notes`: doubts about single figures, in words, which `evotune explain` tells.
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


# --- Facts about a launch -------------------------------------------------------------------------


class Occupancy(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of a launch that are resident together.

    - `bound_by`: the resource that keeps more blocks out: `registers`, `shared memory`, `threads`,
      `blocks` (slots of the multiprocessor). Of several the first one in this order.
    - `limits`: the blocks that each of these resources would allow.
    - `warps`, `max_warps`: of one multiprocessor.
    - `waves`: blocks of the launch / blocks that the whole device holds.
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

    - `instructions`: class -> count, of `GPU_CLASSES` or `CPU_CLASSES`.
    - `loop_instructions`: the same inside the innermost loops; {} where they are not known.
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
    - `stalls`: reason -> mean cycles for which a warp waits between two instructions.
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
    """All that is known of a case's launches, in their order.

    - `unavailable`: a part that is missing (`counters`, `static`, `ceilings`, `occupancy`,
      `launches`) -> why, in one line. A part that such a device never has is not listed.
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
        """ValueError when a value has another type than its field."""
        return msgspec.convert(data, cls)


# Evidence as a run keeps it: of which configuration or baseline, on which case, and its work.
FACT = "evidence"
"""The name of the fact, in a run's store, that holds a list of `GatheredEvidence`."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work that a problem demands on one case, whatever the kernel.

    - `operations`: FLOP.
    - `bytes_moved`: bytes that must cross memory at least once.
    - `exponentials`: exponentials that must be computed; 0 where there are none or nobody says.
    """

    operations: int
    bytes_moved: int
    exponentials: int = 0


class GatheredEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence of one kernel on one case.

    - `configuration`: None for a baseline, whose name is `baseline`.
    - `date`: when it was gathered, ISO 8601 in UTC.
    - `resources`: the compiler's figures, as an outcome holds them.
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
        """Whether both are of the same configuration or baseline on the same case."""
        mine = (self.case, self.baseline, dict(self.configuration or {}))
        return mine == (other.case, other.baseline, dict(other.configuration or {}))


def read_gathered(kept: Json) -> tuple[GatheredEvidence, ...]:
    """The stored list; ValueError when it has another shape."""
    return tuple(msgspec.convert(kept or [], Sequence[GatheredEvidence]))


def merged(kept: Sequence[GatheredEvidence], new: GatheredEvidence) -> list[GatheredEvidence]:
    """The list with `new` in the place of older evidence of the same subject."""
    return [*(item for item in kept if not item.same_subject(new)), new]


# Keeps the measured ceilings of devices, in the user's state folder.
#
# ceilings/1234abcd….json    the ceilings; the name is a hash of all on which they depend
_READER = msgspec.json.Decoder(Ceilings)


def kept(facts: Sequence[Value]) -> Ceilings | None:
    """The ceilings that were kept under these facts; None where there are none."""
    path = _path(facts)
    try:
        return _READER.decode(path.read_bytes()) if path else None
    except (OSError, ValueError):
        return None


def keep(facts: Sequence[Value], ceilings: Ceilings) -> None:
    """Keeps them for later processes; does nothing where the folder cannot be written."""
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
