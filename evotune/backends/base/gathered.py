"""Evidence as a run keeps it: of which configuration or baseline, on which case, and its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from evotune.backends.base.evidence import Evidence
from evotune.trial import Json, Value

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
    resources: Mapping[str, Json] = {}

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
