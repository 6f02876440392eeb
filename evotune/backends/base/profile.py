"""A device's name and abilities: the values of `device.*` in a space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from evotune.trial import Json, Value


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device, live or by name.

    - `backend`: cpu, cuda or recorded.
    - `arch`: the architecture that binaries are compiled for.
    - `attributes`: the names that a space may use as `device.NAME`, with their values.
    - `peak_gflops`: of dense products in half precision, with sums in float32. Of a CPU that has no
      such products it is float32's.
    - `id`, `driver`: the UUID and driver version of a live GPU; other devices have none.
    """

    name: str
    backend: str
    arch: str
    attributes: Mapping[str, Value]
    peak_gflops: float = 0.0  # 0: unknown, no roofline check
    id: str = ""
    driver: str = ""

    def to_json(self) -> dict[str, Json]:
        """The profile as it is stored."""
        fields: dict[str, Json] = msgspec.to_builtins(self)
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> DeviceProfile:
        """ValueError when a value has another type than its field."""
        return msgspec.convert(data, cls)
