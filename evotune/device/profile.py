"""What a device is and can do: the numbers behind `device.*` in a space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from evotune.trial import Json, Value


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device, live or by name.

    `backend` is cpu, cuda or recorded; `arch` is what binaries are compiled for.
    `attributes` are the names a space may use as `device.NAME`. Only a live GPU has an `id`
    (its UUID) and a `driver` version.
    """

    name: str
    backend: str
    arch: str
    attributes: Mapping[str, Value]
    peak_gflops: float = 0.0  # 0: unknown, no roofline check
    id: str = ""
    driver: str = ""

    def to_json(self) -> dict[str, Json]:
        """As it is stored."""
        fields: dict[str, Json] = msgspec.to_builtins(self)
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> DeviceProfile:
        """ValueError when a value has another type than its field."""
        return msgspec.convert(data, cls)
