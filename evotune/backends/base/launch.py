"""How one candidate is compiled and launched, as plain data that can be sent between processes.

`DeviceProfile` is the device, by its name and abilities.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from evotune.problems.problem import ELEMENT_BYTES
from evotune.space.specs import L2_PROMOTIONS, MOST_BOX, MOST_DIMENSIONS, SWIZZLES
from evotune.trial import Figure, Json, NamedFigures, OutcomeKind, Value, number

# Tensor maps as plain data: they describe a tensor to a GPU's copy engine (TMA, sm_90 and later).
#
# Limits: CUDA driver API, "Tensor Map Object Management", `cuTensorMapEncodeTiled`.
FIRST_ARCH = 90
UNIT_BYTES = 16  # strides and a box's rows are multiples of it
MOST_EXTENT = 1 << 32
MOST_STRIDE_BYTES = 1 << 40


class TensorMap(msgspec.Struct, frozen=True, array_like=True):
    """Boxes of a tensor whose last dimension is contiguous. `extents`, `box` and `strides` count
    elements, the outermost dimension first; `swizzle_bytes` and `l2_promotion_bytes` are 0 for
    none. `strides` are those of all dimensions; empty if the tensor is contiguous.

    The part of a box that lies outside the tensor is read as zeros and not written.
    """

    dtype: str
    extents: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 0
    l2_promotion_bytes: int = 0
    strides: tuple[int, ...] = ()

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    def strides_bytes(self) -> tuple[int, ...]:
        """The distance from one index to the next for every dimension but the last, outermost
        first."""
        if self.strides:
            return tuple(self.element_bytes * stride for stride in self.strides[:-1])
        return tuple(
            self.element_bytes * math.prod(self.extents[i + 1 :])
            for i in range(len(self.extents) - 1)
        )

    def violation(self) -> str:
        """Why the driver would refuse the map, in words; "" if it would accept it."""
        return next(self._violations(), "")

    def _violations(self) -> Iterator[str]:
        rank = len(self.extents)
        if self.dtype not in ELEMENT_BYTES:
            yield f"a tensor map of {self.dtype}; known: {', '.join(ELEMENT_BYTES)}"
        elif not 1 <= rank <= MOST_DIMENSIONS:
            yield f"a tensor map of {rank} dimensions; at most {MOST_DIMENSIONS} are possible"
        elif len(self.box) != rank:
            yield f"a box of {len(self.box)} sizes for a tensor of {rank} dimensions"
        else:
            yield from self._violations_of_sizes()
            yield from self._violations_of_rows()

    def _violations_of_sizes(self) -> Iterator[str]:
        for size in self.box:
            if not 1 <= size <= MOST_BOX:
                yield f"a box size of {size}; from 1 to {MOST_BOX} are possible"
        for extent in self.extents:
            if not 1 <= extent <= MOST_EXTENT:
                yield f"an extent of {extent}; from 1 to 2^32 are possible"
        for stride in self.strides_bytes():
            if stride % UNIT_BYTES or stride >= MOST_STRIDE_BYTES:
                yield f"a stride of {stride} bytes; multiples of 16 below 2^40 are possible"

    def _violations_of_rows(self) -> Iterator[str]:
        for what, found, known in (
            ("swizzle", self.swizzle_bytes, SWIZZLES),
            ("L2 promotion", self.l2_promotion_bytes, L2_PROMOTIONS),
        ):
            if found not in known:
                yield f"{what} of {found} bytes; expected one of {', '.join(map(str, known))}"
        row_bytes = self.box[-1] * self.element_bytes
        if row_bytes % UNIT_BYTES:
            yield f"a box row of {row_bytes} bytes, which is not a multiple of {UNIT_BYTES}"
        if self.swizzle_bytes and row_bytes > self.swizzle_bytes:
            yield f"a box row of {row_bytes} bytes, more than the swizzle of {self.swizzle_bytes}"


POINTERS = ("tensor", "workspace", "null")
"""The types of arguments that a function takes as pointers."""

DYNAMIC_SHARED_BYTES = "dynamic_shared_bytes"
"""The resource of a binary that says how much shared memory each launch must request."""


_RULES = 2
"""Part of each job's key. It is increased when compilers come to refuse more sources, so that
everything built before is built again."""

MBARRIERS = "mbarriers"
"""The resource of a binary that is 1 if it uses mbarriers, which racecheck does not follow, else 0.
"""


def uses_mbarriers(ptx: str) -> int:
    return int(re.search(r"\bmbarrier\.", ptx) is not None)


class Argument(msgspec.Struct, frozen=True, array_like=True):
    """One kernel argument. By its `type` it is a `tensor` or `workspace` (by name), `null` for a
    tensor that the case lacks, a scalar (by value), or a `tensor_map` of the tensor `name` (by
    value)."""

    type: str
    name: str = ""
    value: int | float = 0
    tensor_map: TensorMap | None = None


class Workspace(msgspec.Struct, frozen=True, array_like=True):
    """Scratch memory that the harness allocates. `init`: poison (before every launch) or
    zero_once."""

    name: str
    bytes: int
    init: str = "poison"


class ConstantMemory(msgspec.Struct, frozen=True, array_like=True):
    """Says that the `__constant__` variable `symbol` gets the `bytes` of the tensor `tensor`."""

    symbol: str
    tensor: str
    bytes: int


class Launch(msgspec.Struct, frozen=True, array_like=True):
    """One launch of the function `entry` with the plan's arguments.

    - `grid`: in blocks; empty on the CPU.
    - `block`: in threads; empty on the CPU.
    - `shared_bytes`: dynamic shared memory.
    """

    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared_bytes: int = 0
    entry: str = ""

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return math.prod(self.block)


class CallTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that a function gets by name. `strides` are those of all dimensions, in elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_output: bool = False


class CallPlan(msgspec.Struct, frozen=True, array_like=True):
    """What a kernel that is built for each case gets: the case's symbols, and its tensors."""

    symbols: tuple[tuple[str, Value], ...]
    tensors: tuple[CallTensor, ...]


class LaunchPlan(msgspec.Struct, frozen=True):
    """Everything needed to call a compiled kernel on one case.

    - `entry`: the kernel's function, which the CPU calls.
    - `launches`: run in order on one stream; all take the same arguments.
    - `constant_memory`: is filled before the launches, in each call.
    - `call`: only of a kernel that is built for each case; it has no arguments.
    """

    entry: str
    arguments: tuple[Argument, ...]
    workspaces: tuple[Workspace, ...]
    launches: tuple[Launch, ...]
    constant_memory: tuple[ConstantMemory, ...] = ()
    call: CallPlan | None = None

    def completed(self, resources: NamedFigures) -> LaunchPlan:
        """The plan with the one figure that only the compiler knows: the shared memory that Triton
        uses."""
        shared_bytes = number(resources, DYNAMIC_SHARED_BYTES)
        if shared_bytes is None:
            return self
        launches = (
            msgspec.structs.replace(launch, shared_bytes=int(shared_bytes))
            for launch in self.launches
        )
        return msgspec.structs.replace(self, launches=tuple(launches))


class CompileJob(msgspec.Struct, frozen=True, dict=True):
    """One compiler run. Configuration values reach the source only as `defines`.

    - `sources_sha256`: covers the source and everything it includes from `root`.
    - `formulas`: further macros, (name with parameters, C++ text). A problem makes the text of an
      expression's tree.
    - `values`: the configuration, for a language that takes its values as they are. It has no
      `defines`.
    - `entry`: the one function that Triton compiles, for arguments of the types in `signature`.
    - `entries`: other compilers compile the whole source, and check that each of these functions
      takes the arguments in `signature` (`check_text` in `sources.py`).
    """

    language: str
    root: str
    source: str  # relative to root
    defines: tuple[tuple[str, int], ...]
    options: tuple[str, ...]
    arch: str
    sources_sha256: str
    entry: str = ""
    signature: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    formulas: tuple[tuple[str, str], ...] = ()
    values: tuple[tuple[str, Value], ...] = ()

    @property
    def macros(self) -> list[str]:
        """The compiler's options for `defines` and `formulas`."""
        formulas = ((head.replace(" ", ""), text) for head, text in self.formulas)
        return [f"-D{name}={value}" for name, value in (*self.defines, *formulas)]

    @functools.cached_property
    def key(self) -> str:
        """Identifies the job's result. It does not depend on the folder of the sources."""
        parts = [
            _RULES,
            self.language,
            self.source,
            [list(d) for d in self.defines],
            list(self.options),
            self.arch,
            self.sources_sha256,
            self.entry,
            list(self.signature),
            *([list(self.entries)] if self.entries else []),
            *([["formulas", *map(list, self.formulas)]] if self.formulas else []),
            *([["values", *map(list, self.values)]] if self.values else []),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Binary(msgspec.Struct, frozen=True, tag=True):
    """A compiled kernel in the build cache."""

    sha256: str
    path: str
    resources: NamedFigures
    seconds: float
    cached: bool = False


def entry_resources(resources: NamedFigures) -> Mapping[str, Mapping[str, Figure]]:
    """A binary's figures of each entry function by name; empty if the compiler gave none."""
    found = resources.get("entries")
    named = found.items() if isinstance(found, Mapping) else ()
    return {name: own for name, own in named if isinstance(own, Mapping)}


def resources_of(entry: str, resources: NamedFigures) -> NamedFigures:
    """The figures of one entry function, or the binary's if the function has none."""
    return entry_resources(resources).get(entry, resources)


class CompileFailure(msgspec.Struct, frozen=True, tag=True):
    """Why a job has no binary; `kind` is one of the compile outcomes."""

    kind: OutcomeKind
    reason: str
    log: str
    seconds: float


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device, live or by name.

    - `backend`: cpu, cuda or recorded.
    - `arch`: the architecture that binaries are compiled for.
    - `attributes`: the names that a space may use as `device.NAME`, with their values.
    - `peak_gflops`: the peak of dense products in half precision with sums in float32, or the peak
      of float32 for a CPU without such products.
    - `id`, `driver`: the UUID and driver version of a live GPU; "" for other devices.
    """

    name: str
    backend: str
    arch: str
    attributes: Mapping[str, Value]
    peak_gflops: float = 0.0  # 0: unknown, no roofline check
    id: str = ""
    driver: str = ""

    def to_json(self) -> dict[str, Json]:
        """The profile in the form in which it is stored."""
        fields: dict[str, Json] = msgspec.to_builtins(self)
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> DeviceProfile:
        """Raises ValueError if a value has another type than its field."""
        return msgspec.convert(data, cls)
