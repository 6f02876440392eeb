"""Turns other recordings into the shape of a Kernel Tuner cache.

- T4 results (`{"results": [{configuration, invalidity, measurements, times}]}`), as Kernel
  Tuner's `store_output_file` and the autotuning methodology write them.
- evotune's own: the document of `evotune report RUN --format json`.

Both list configurations without saying which values a parameter could have: its domain is the
values that occur. When a configuration was measured more than once, its last record counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from evotune.errors import SpaceError
from evotune.space.suggest import shorten
from evotune.trial import Json

# T4's names of failures, with the names in Kernel Tuner's caches.
_T4_FAILURES: Final = {
    "compile": "CompilationFailedConfig",
    "runtime": "RuntimeFailedConfig",
    "constraints": "InvalidConfig",
    "correctness": "wrong_result",
}
_MS_PER_UNIT: Final = {"": 1.0, "ms": 1.0, "milliseconds": 1.0, "s": 1e3, "us": 1e-3, "ns": 1e-6}
_Records = Iterator[tuple[Mapping[str, Json], Json]]  # configuration, and time in ms or failure


def as_cache(document: Mapping[str, Json]) -> Mapping[str, Json]:
    """The document with `tune_params` and `cache`. A document that is a cache already, or none of
    these formats, is returned as it is."""
    if "cache" in document:
        return document
    if isinstance(document.get("results"), list):
        return _cache({}, _t4_records(document["results"]), "results")
    run, trials = document.get("run"), document.get("trials")
    if isinstance(run, dict) and isinstance(trials, list):
        device = run.get("device")
        name = device.get("name") if isinstance(device, dict) else None
        header = {"kernel_name": run.get("space") or "", "device_name": name or ""}
        return _cache(header, _evotune_records(trials), "trials")
    return document


def _cache(header: Mapping[str, Json], records: _Records, key: str) -> Mapping[str, Json]:
    """A cache of these records; `key` is the document's key that holds them."""
    one = key.removesuffix("s")
    domains: dict[str, dict[Json, None]] = {}
    cache: dict[str, Json] = {}
    for i, (configuration, time) in enumerate(records):
        place = key, i, "configuration"
        if domains and configuration.keys() != domains.keys():
            message = f"{one} {i}: every configuration must name the same parameters"
            raise MisplacedError(message, *place)
        for name, value in configuration.items():
            if not isinstance(value, bool | int | float | str):
                message = f"{one} {i}: parameter {name} has the value {shorten(repr(value))}"
                raise MisplacedError(message, *place, name)
            domains.setdefault(name, {})[value] = None
        cache[json.dumps([configuration[name] for name in domains])] = {
            **configuration,
            "time": time,
        }
    return {
        **header,
        "tune_params_keys": list(domains),
        "tune_params": {name: list(values) for name, values in domains.items()},
        "cache": cache,
    }


def _t4_records(results: list[Json]) -> _Records:
    for i, result in enumerate(results):
        configuration = result.get("configuration") if isinstance(result, dict) else None
        if not isinstance(configuration, dict) or not configuration:
            raise MisplacedError(f"result {i} has no configuration", "results", i)
        invalidity = result.get("invalidity", "correct")
        if invalidity != "correct":
            yield configuration, _T4_FAILURES.get(invalidity, f"{invalidity}")
        else:
            yield configuration, _t4_time_ms(i, result)


def _t4_time_ms(i: int, result: Mapping[str, Json]) -> Json:
    """The first objective's measurement in ms, of `time` when the result names no objective; None
    when there is no such measurement."""
    objectives = result.get("objectives")
    name = objectives[0] if isinstance(objectives, list) and objectives else "time"
    for measurement in result.get("measurements") or ():
        if isinstance(measurement, dict) and measurement.get("name") == name:
            value, scale = measurement.get("value"), _MS_PER_UNIT.get(measurement.get("unit", ""))
            if scale is None:
                unit = shorten(repr(measurement["unit"]))
                message = f"result {i}: {name} is in {unit}, which is not a unit of time"
                raise MisplacedError(message, "results", i, "measurements")
            if isinstance(value, int | float) and not isinstance(value, bool):
                return value * scale
            return value
    return None


def _evotune_records(trials: list[Json]) -> _Records:
    for i, trial in enumerate(trials):
        configuration = trial.get("configuration") if isinstance(trial, dict) else None
        if not isinstance(configuration, dict) or not configuration:
            raise MisplacedError(f"trial {i} has no configuration", "trials", i)
        time_us = trial.get("time_us")
        if trial.get("outcome") == "ok" and isinstance(time_us, int | float):
            yield configuration, time_us / 1000
        else:
            yield configuration, f"{trial.get('outcome')}"


# --- The place of a mistake in a JSON text, looked for only when there is one ---------------------

_BETWEEN = re.compile(r"[ \t\r\n,:]*")
_decode = json.JSONDecoder().raw_decode


class MisplacedError(SpaceError):
    """A mistake in a document, at the value that `path` leads to from the top or at an `offset`."""

    def __init__(self, message: str, *path: str | int, offset: int | None = None) -> None:
        super().__init__(message)
        self._path = path
        self._offset = offset

    def placed(self, text: str) -> SpaceError:
        """The error with its line and column in the document's text."""
        offset = place_of(text, self._path) if self._offset is None else self._offset
        before = text[:offset]
        column = offset - before.rfind("\n")
        return SpaceError(self.message, line=before.count("\n") + 1, column=column)


def place_of(text: str, path: Sequence[str | int]) -> int:
    """The offset of the key or item that `path` leads to. Where the text does not have it, the
    offset of the last step that it has."""
    offset = value = _after_blanks(text, 0)
    for step in path:
        found = None
        try:
            for name, place, begin in _members(text, value):
                if name == step:
                    found = place, begin  # the last of equal keys counts, as in JSON parsers
        except (ValueError, IndexError, RecursionError):
            pass  # the text is cut or damaged
        if found is None:
            return offset
        offset, value = found
    return offset


def _members(text: str, container: int) -> Iterator[tuple[str | int, int, int]]:
    """The name, offset and value's offset of each member of the object or array at `container`."""
    is_object = text[container] == "{"
    if not is_object and text[container] != "[":
        return
    at, number = _after_blanks(text, container + 1), 0
    while text[at] not in "]}":
        name: str | int = number
        begin = at
        if is_object:
            name, end = _decode(text, at)
            begin = _after_blanks(text, end)
        yield name, at, begin
        at, number = _after_blanks(text, _decode(text, begin)[1]), number + 1


def _after_blanks(text: str, offset: int) -> int:
    match = _BETWEEN.match(text, offset)
    return match.end() if match else offset
