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
_MS_PER_UNIT: Final = {
    name: ms
    for ms, names in (
        (1e3, "s sec second seconds"),
        (
            1.0,
            "ms msec millisecond milliseconds milisecond miliseconds",
        ),  # misspelt in published files
        (1e-3, "us µs μs usec microsecond microseconds"),  # micro sign, Greek mu
        (1e-6, "ns nsec nanosecond nanoseconds"),
    )
    for name in names.split()
}
_TIME = re.compile("time|duration|latency", re.IGNORECASE)
"""In the name of an objective that states no unit: a time. Others, as `GFLOP/s`, are not read."""
_Records = Iterator[tuple[Mapping[str, Json], Json]]  # configuration, and time in ms or failure


def as_cache(document: Mapping[str, Json]) -> Mapping[str, Json]:
    """The document with `tune_params` and `cache`. A document that is a cache already, or none of
    these formats, is returned as it is."""
    if "cache" in document:
        return document
    if isinstance(document.get("results"), list):
        scale = _t4_scale(document.get("metadata"))
        return _cache({}, _t4_records(document["results"], scale), "results")
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


def _t4_scale(metadata: Json) -> float | None:
    """Milliseconds in the unit that the document states for all its times; None without one."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise MisplacedError('"metadata" is not an object', "metadata")
    unit = metadata.get("timeunit")
    if unit is None or unit == "":
        return None
    return _ms_per(unit, "metadata.timeunit", "metadata", "timeunit")


def _ms_per(unit: Json, subject: str, *place: str | int) -> float:
    """Milliseconds in the unit. MisplacedError where it is no unit of time."""
    scale = _MS_PER_UNIT.get(unit.strip().lower()) if isinstance(unit, str) else None
    if scale is None:
        found = shorten(repr(unit))
        raise MisplacedError(f"{subject} is in {found}, which is not a unit of time", *place)
    return scale


def _t4_records(results: list[Json], scale: float | None) -> _Records:
    """`scale`: milliseconds in the unit of values that state none, if the document says it."""
    for i, result in enumerate(results):
        configuration = result.get("configuration") if isinstance(result, dict) else None
        if not isinstance(configuration, dict) or not configuration:
            raise MisplacedError(f"result {i} has no configuration", "results", i)
        invalidity = result.get("invalidity", "correct")
        if not isinstance(invalidity, str):
            raise _no_such(i, "invalidity", "a word", invalidity)
        if invalidity != "correct":
            yield configuration, _T4_FAILURES.get(invalidity, invalidity)
        else:
            yield configuration, _t4_time_ms(i, result, scale)


def _t4_time_ms(i: int, result: Mapping[str, Json], scale: float | None) -> Json:
    """The first objective's measurement in ms, of `time` when the result names no objective; None
    when there is no such measurement."""
    name = _t4_objective(i, result)
    measurements = result.get("measurements") or []
    if not isinstance(measurements, list):
        raise _no_such(i, "measurements", "a list", measurements)
    for measurement in measurements:
        if not isinstance(measurement, dict):
            raise _no_such(i, "measurements", "a list of objects", measurement)
        if measurement.get("name") == name:
            return _t4_value_ms(i, name, measurement, scale)
    return None


def _t4_objective(i: int, result: Mapping[str, Json]) -> str:
    objectives = result.get("objectives") or ["time"]
    if not isinstance(objectives, list) or not isinstance(objectives[0], str):
        raise _no_such(i, "objectives", "a list of names", objectives)
    return objectives[0]


def _t4_value_ms(
    i: int, name: str, measurement: Mapping[str, Json], scale: float | None
) -> float | None:
    place = "results", i, "measurements"
    value, unit = measurement.get("value"), measurement.get("unit")
    if unit is not None and unit != "":
        scale = _ms_per(unit, f"result {i}: {shorten(name)}", *place)
    elif _TIME.search(name) is None:
        message = (
            f"result {i}: the objective {shorten(name)} has no unit of time: only times are read"
        )
        raise MisplacedError(message, *place)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _no_such(i, "measurements", f"a number as the value of {shorten(name)}", value)
    return value * (1.0 if scale is None else scale)


def _no_such(i: int, key: str, expected: str, found: Json) -> MisplacedError:
    message = f"result {i}: {key}: expected {expected}, found {shorten(repr(found))}"
    return MisplacedError(message, "results", i, key)


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
