"""How one candidate is compiled and launched, as plain data that crosses processes as JSON."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

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


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel argument: a `tensor` or `workspace` by name, a scalar by value, or by value a
    `tensor_map` of the tensor `name`."""

    type: str
    name: str = ""
    value: int | float = 0
    tensor_map: TensorMap | None = None

    def to_json(self) -> list[Json]:
        shared = [self.type, self.name, self.value]
        return shared if self.tensor_map is None else [*shared, self.tensor_map.to_json()]

    @classmethod
    def from_json(cls, data: Sequence[Json]) -> Argument:
        kind, name, value, *tensor_maps = data
        return cls(kind, name, value, *map(TensorMap.from_json, tensor_maps))


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory the harness allocates. `init`: poison (every launch) or zero_once."""

    name: str
    bytes: int
    init: str = "poison"

    def to_json(self) -> list[Json]:
        return [self.name, self.bytes, self.init]


@dataclass(frozen=True, slots=True)
class ConstantMemory:
    """The `__constant__` variable `symbol` gets the `bytes` of the tensor `tensor`."""

    symbol: str
    tensor: str
    bytes: int

    def to_json(self) -> list[Json]:
        return [self.symbol, self.tensor, self.bytes]


@dataclass(frozen=True, slots=True)
class Launch:
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

    def to_json(self) -> list[Json]:
        return [list(self.grid), list(self.block), self.shared_bytes, self.entry]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything needed to call a compiled kernel on one case.

    `entry` is the kernel's (what the CPU calls); `launches` run in order on one stream, and all
    take the same arguments. `constant_memory` is filled before them, in each call.
    """

    entry: str
    arguments: tuple[Argument, ...]
    workspaces: tuple[Workspace, ...]
    launches: tuple[Launch, ...]
    constant_memory: tuple[ConstantMemory, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "entry": self.entry,
            "arguments": [a.to_json() for a in self.arguments],
            "workspaces": [w.to_json() for w in self.workspaces],
            "launches": [item.to_json() for item in self.launches],
            "constant_memory": [item.to_json() for item in self.constant_memory],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> LaunchPlan:
        return cls(
            entry=data["entry"],
            arguments=tuple(Argument.from_json(a) for a in data["arguments"]),
            workspaces=tuple(Workspace(*w) for w in data["workspaces"]),
            launches=tuple(
                Launch(tuple(grid), tuple(block), shared_bytes, entry)
                for grid, block, shared_bytes, entry in data["launches"]
            ),
            constant_memory=tuple(
                ConstantMemory(*item) for item in data.get("constant_memory", ())
            ),
        )

    def completed(self, resources: Mapping[str, Json]) -> LaunchPlan:
        """With what only the compiler knows of a launch: how much shared memory Triton uses."""
        if DYNAMIC_SHARED_BYTES not in resources:
            return self
        shared_bytes = int(resources[DYNAMIC_SHARED_BYTES])
        launches = (replace(launch, shared_bytes=shared_bytes) for launch in self.launches)
        return replace(self, launches=tuple(launches))


@dataclass(frozen=True)
class CompileJob:
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

    def to_json(self) -> dict[str, Json]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> CompileJob:
        fields = dict(data)
        fields["defines"] = tuple((name, value) for name, value in fields["defines"])
        fields["options"] = tuple(fields["options"])
        fields["signature"] = tuple(fields["signature"])
        fields["entries"] = tuple(fields["entries"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel in the build cache."""

    sha256: str
    path: str
    resources: Mapping[str, Json]
    seconds: float
    cached: bool = False

    def to_json(self) -> dict[str, Json]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["resources"] = dict(self.resources)
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Binary:
        return cls(**data)


@dataclass(frozen=True, slots=True)
class CompileFailure:
    """Why a job has no binary; `kind` is one of the compile outcomes."""

    kind: OutcomeKind
    reason: str
    log: str
    seconds: float

    def to_json(self) -> dict[str, Json]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["kind"] = self.kind.value
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> CompileFailure:
        return cls(**{**data, "kind": OutcomeKind(data["kind"])})
