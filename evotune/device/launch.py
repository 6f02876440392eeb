"""How one candidate is compiled and launched, as plain data that crosses processes."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping

import msgspec

from evotune.device.tensor_map import TensorMap
from evotune.trial import Json, OutcomeKind

DYNAMIC_SHARED_BYTES = "dynamic_shared_bytes"
"""Among a binary's resources: the shared memory that each launch must ask for."""


_RULES = 2
"""Part of each job's key. Counted up when compilers refuse more of the same sources: what was built
before is built again."""

MBARRIERS = "mbarriers"
"""Among a binary's resources: 1 if it uses mbarriers, which racecheck does not follow, else 0."""


def uses_mbarriers(ptx: str) -> int:
    return int(re.search(r"\bmbarrier\.", ptx) is not None)


class Argument(msgspec.Struct, frozen=True, array_like=True):
    """One kernel argument: a `tensor` or `workspace` by name, a scalar by value, or by value a
    `tensor_map` of the tensor `name`."""

    type: str
    name: str = ""
    value: int | float = 0
    tensor_map: TensorMap | None = None


class Workspace(msgspec.Struct, frozen=True, array_like=True):
    """Scratch memory the harness allocates. `init`: poison (every launch) or zero_once."""

    name: str
    bytes: int
    init: str = "poison"


class ConstantMemory(msgspec.Struct, frozen=True, array_like=True):
    """The `__constant__` variable `symbol` gets the `bytes` of the tensor `tensor`."""

    symbol: str
    tensor: str
    bytes: int


class Launch(msgspec.Struct, frozen=True, array_like=True):
    """One launch of the function `entry` with the plan's arguments.

    Grid in blocks, block in threads (both empty on the CPU), dynamic shared memory in bytes.
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

    `entry` is the kernel's (what the CPU calls); `launches` run in order on one stream, and all
    take the same arguments. `constant_memory` is filled before them, in each call.
    """

    entry: str
    arguments: tuple[Argument, ...]
    workspaces: tuple[Workspace, ...]
    launches: tuple[Launch, ...]
    constant_memory: tuple[ConstantMemory, ...] = ()

    def completed(self, resources: Mapping[str, Json]) -> LaunchPlan:
        """With what only the compiler knows of a launch: how much shared memory Triton uses."""
        if DYNAMIC_SHARED_BYTES not in resources:
            return self
        shared_bytes = int(resources[DYNAMIC_SHARED_BYTES])
        launches = (
            msgspec.structs.replace(launch, shared_bytes=shared_bytes) for launch in self.launches
        )
        return msgspec.structs.replace(self, launches=tuple(launches))


class CompileJob(msgspec.Struct, frozen=True, dict=True):
    """One compiler run. Configuration values reach the source only as `defines`.

    `sources_sha256` covers the source and everything it includes from `root`. Triton compiles one
    function, `entry`, for arguments of the types in `signature`. Others compile all there is, and
    see that each function in `entries` takes what is in `signature` (`argument_check.py`).
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

    @functools.cached_property
    def key(self) -> str:
        """Names the job's result: the same for every folder the sources may lie in."""
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
