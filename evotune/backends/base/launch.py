"""How one candidate is compiled and launched, as plain data that can be sent between processes."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping

import msgspec

from evotune.backends.base.tensor_map import TensorMap
from evotune.trial import Json, OutcomeKind

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
    """Scratch memory that the harness allocates. `init`: poison (every launch) or zero_once."""

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


class LaunchPlan(msgspec.Struct, frozen=True):
    """Everything needed to call a compiled kernel on one case.

    - `entry`: the kernel's function, which the CPU calls.
    - `launches`: run in order on one stream; all take the same arguments.
    - `constant_memory`: is filled before the launches, in each call.
    """

    entry: str
    arguments: tuple[Argument, ...]
    workspaces: tuple[Workspace, ...]
    launches: tuple[Launch, ...]
    constant_memory: tuple[ConstantMemory, ...] = ()

    def completed(self, resources: Mapping[str, Json]) -> LaunchPlan:
        """The plan with the one figure that only the compiler knows: the shared memory that Triton
        uses."""
        if DYNAMIC_SHARED_BYTES not in resources:
            return self
        shared_bytes = int(resources[DYNAMIC_SHARED_BYTES])
        launches = (
            msgspec.structs.replace(launch, shared_bytes=shared_bytes) for launch in self.launches
        )
        return msgspec.structs.replace(self, launches=tuple(launches))


class CompileJob(msgspec.Struct, frozen=True, dict=True):
    """One compiler run. Configuration values reach the source only as `defines`.

    - `sources_sha256`: covers the source and everything it includes from `root`.
    - `formulas`: further macros, (name with parameters, C++ text). A problem makes the text of an
      expression's tree.
    - `entry`: the one function that Triton compiles, for arguments of the types in `signature`.
    - `entries`: other compilers compile the whole source, and check that each of these functions
      takes the arguments in `signature` (`source_checks.py`).
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
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Binary(msgspec.Struct, frozen=True, tag=True):
    """A compiled kernel in the build cache."""

    sha256: str
    path: str
    resources: Mapping[str, Json]
    seconds: float
    cached: bool = False


class CompileFailure(msgspec.Struct, frozen=True, tag=True):
    """Why a job has no binary; `kind` is one of the compile outcomes."""

    kind: OutcomeKind
    reason: str
    log: str
    seconds: float
