"""Replays a recorded search space: a Kernel Tuner cache (complete or cut short), T4 results, or
one of evotune's own reports."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import operator
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar, cast

import msgspec

from evotune.errors import SpaceError, UsageError
from evotune.space.search_space import (
    Boolean,
    Categorical,
    ExplicitSpace,
    OrderedParameter,
    Parameter,
    strides,
)
from evotune.space.specs import RecordedSpec
from evotune.trial import Configuration, Json, Outcome, OutcomeKind, Value, parse_json
from evotune.util.files import open_regular
from evotune.util.words import shorten

MAX_BYTES: Final = 256 * 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
# Old versions of Kernel Tuner record a failure as a time of 1e20 ms.
_FAILURE_TIME_MS = 1e20
_FAILURE_KINDS = {
    **{kind.value: kind for kind in OutcomeKind if kind is not OutcomeKind.OK},
    "InvalidConfig": OutcomeKind.REJECTED,
    "CompilationFailedConfig": OutcomeKind.COMPILE_ERROR,
    "RuntimeFailedConfig": OutcomeKind.LAUNCH_ERROR,
}
_Ranks: TypeAlias = list[tuple[str, dict[Value, int]]]
_Entry: TypeAlias = tuple[Json, ...]
"""The value of each parameter, the time and the error; UNSET if the entry has none."""
_Found = TypeVar("_Found")
# The longest end of a cut file before which the decoder can report an error: `-Infinit`.
_LONGEST_CUT_TOKEN = 8
_ABSURD = re.compile(r"[0-9]{1000,}|(?:[\[{][ \t\r\n]*){500}")


class _ByConfiguration(Mapping[Configuration, _Found]):
    """A mapping from configurations, stored by rank, because objects would take ten times the
    memory."""

    def __init__(self, space: ExplicitSpace, by_rank: dict[int, _Found]) -> None:
        self._space = space
        self._by_rank = by_rank

    def __getitem__(self, configuration: Configuration) -> _Found:
        rank = self._space.rank(configuration)
        if rank is None:
            raise KeyError(configuration)
        return self._by_rank[rank]

    def __iter__(self) -> Iterator[Configuration]:
        return map(self._space.at_rank, self._by_rank)

    def __len__(self) -> int:
        return len(self._by_rank)

    def values(self) -> ValuesView[_Found]:
        return self._by_rank.values()


@dataclass(frozen=True, slots=True)
class RecordedSpace:
    """The recorded configurations and their outcomes.

    A failed configuration is in the space like any other: a search that proposes it spends a trial.
    `complete` is False if the recording was still being written, or was cut off.
    """

    name: str
    device_name: str
    space: ExplicitSpace
    times_ms: Mapping[Configuration, float]
    failures: Mapping[Configuration, str]
    complete: bool = True

    def outcome(self, configuration: Configuration) -> Outcome:
        """The recorded outcome. Raises UsageError if the configuration was not recorded."""
        time_ms = self.times_ms.get(configuration)
        if time_ms is not None:
            return Outcome(
                OutcomeKind.OK, fitness=-math.log(time_ms), resources={"time_ms": time_ms}
            )
        failure = self.failures.get(configuration)
        if failure is None:
            raise UsageError(f"{self.name} holds no record of {configuration!r}")
        kind = _FAILURE_KINDS.get(failure, OutcomeKind.LAUNCH_ERROR)
        return Outcome(kind, reason=f"recorded as {failure}")

    @property
    def best_time_ms(self) -> float:
        """The time of the recording's optimum in ms; infinite if every configuration failed."""
        return min(self.times_ms.values(), default=math.inf)


def read_recorded_space(path: Path) -> RecordedSpace:
    """Reads a recording, plain or gzip. Raises SpaceError or UsageError for any other file.

    A cache may be cut anywhere after `"cache": {`: the entries before the cut are kept.
    """
    try:
        return recorded_space(_read_text(path), path.name.partition(".")[0])
    except SpaceError as error:
        raise SpaceError(
            error.message, file=str(path), line=error.line, column=error.column
        ) from None


def read_named_recording(spec: RecordedSpec) -> RecordedSpace:
    """The recording that a space names. Raises SpaceError with the position in the recording, if it
    is known, else with the position in the space."""
    try:
        return read_recorded_space(spec.file)
    except UsageError as error:
        raise spec.position.error(str(error)) from error
    except SpaceError as error:
        if error.line:
            raise
        raise spec.position.error(str(error)) from error


def recorded_space(text: str, name: str) -> RecordedSpace:
    """The space in a recording's text. `name`: the space's name if the text has none. Raises
    SpaceError with line and column."""
    try:
        return _recorded_space(text, name)
    except MisplacedError as error:
        raise error.placed(text) from None


def _recorded_space(text: str, name: str) -> RecordedSpace:
    header, parameters, entries, complete = _finished_cache(text) or _any_recording(text)
    ranks = _ranks(parameters)
    parts = [part for _, part in ranks]
    times_ms: dict[int, float] = {}
    failures: dict[int, str] = {}
    for number, (key, (*values, time, error)) in enumerate(entries, start=1):
        try:
            rank = sum(map(operator.getitem, parts, values))
        except (KeyError, TypeError):  # the value is missing, not listed, or a list
            raise _unlisted(_entry(number, key), key, values, ranks) from None
        found = _time_or_failure(time, error)
        if found is None:
            raise MisplacedError(f'{_entry(number, key)} has no "time"', "cache", key)
        if isinstance(found, float):
            times_ms[rank] = found
            failures.pop(rank, None)  # of the same values, written as 1 and 1.0
        else:
            failures[rank] = found
            times_ms.pop(rank, None)
    space = ExplicitSpace.of_ranks(parameters, itertools.chain(times_ms, failures))
    return RecordedSpace(
        name=f"{header.get('kernel_name') or name}",
        device_name=f"{header.get('device_name', '')}",
        space=space,
        times_ms=_ByConfiguration(space, times_ms),
        failures=_ByConfiguration(space, failures),
        complete=complete,
    )


def _read_text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            zipped = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            # The limit holds for the unpacked text: a small archive can hold gigabytes.
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if zipped else file
            data = stream.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SpaceError(f"the gzip archive is damaged or cut: {error}", file=str(path)) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise SpaceError(f"larger than {MAX_BYTES // 2**20} MiB", file=str(path))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"not a text file: {error.reason}"
        found = MisplacedError(message, offset=error.start).placed(data.decode("latin-1"))
        raise SpaceError(message, file=str(path), line=found.line, column=found.column) from None


_Recording: TypeAlias = tuple[
    Mapping[str, Json], tuple[Parameter, ...], Iterator[tuple[str, _Entry]], bool
]
"""Header, parameters, entries by key, and whether the document was complete."""


class _Header(msgspec.Struct):
    """A cache whose entries are still text."""

    cache: msgspec.Raw
    tune_params_keys: Json
    tune_params: Json
    kernel_name: Json = None
    device_name: Json = ""


def _finished_cache(text: str) -> _Recording | None:
    """Reads a well-formed cache; None for any other text. It decodes only the fields of entries
    that count, which saves time and memory when there are a million entries."""
    try:
        header = _decode_header(text)
        parameters = _parameters(msgspec.structs.asdict(header))
        names = [parameter.name for parameter in parameters]
        if not {"time", "__error__"}.isdisjoint(names):
            return None
        fields = [f"value_{i}" for i in range(len(names))]
        entry = msgspec.defstruct(
            "Entry",
            [(field, Any, msgspec.UNSET) for field in (*fields, "time", "error")],
            rename={**dict(zip(fields, names, strict=True)), "error": "__error__"},
            gc=False,
        )
        cache = msgspec.json.decode(header.cache, type=dict[str, entry])  # type: ignore[valid-type]
    except (ValueError, SpaceError, RecursionError):
        return None  # `_any_recording` reads more, and says what is wrong
    if not cache:
        return None
    entries = zip(cache, map(msgspec.structs.astuple, cache.values()), strict=True)
    return msgspec.structs.asdict(header), parameters, entries, True


_decode_header = msgspec.json.Decoder(_Header).decode


def _any_recording(text: str) -> _Recording:
    header, cache, complete = _parse(text)
    parameters = _parameters(header)
    names = [*(parameter.name for parameter in parameters), "time", "__error__"]
    return header, parameters, _entries(cache, names), complete


def _entries(cache: Mapping[str, Json], names: Sequence[str]) -> Iterator[tuple[str, _Entry]]:
    for number, (key, entry) in enumerate(cache.items(), start=1):
        if not isinstance(entry, dict):
            raise MisplacedError(f"{_entry(number, key)} is not an object", "cache", key)
        yield key, tuple(entry.get(name, msgspec.UNSET) for name in names)


def _parse(text: str) -> tuple[Mapping[str, Json], Mapping[str, Json], bool]:
    """Header, cache entries, and whether the document was complete."""
    try:
        document = parse_json(text)
        complete = True
    except json.JSONDecodeError as error:
        document = _parse_unfinished(text, error.pos)
        complete = False
    except (ValueError, RecursionError):
        raise _absurd(text) from None
    if not isinstance(document, dict):
        raise MisplacedError("not a Kernel Tuner cache: expected a JSON object")
    document = as_cache(document)
    cache = document.get("cache")
    if not isinstance(cache, dict):
        raise MisplacedError('not a Kernel Tuner cache: no "cache" object', "cache")
    if not cache:
        raise MisplacedError("the recording holds no configuration yet", "cache")
    return document, cache, complete


def _absurd(text: str) -> MisplacedError:
    """The error for a number of thousands of digits, or for deep nesting."""
    found = _ABSURD.search(text)
    offset = found.start() if found else 0
    message = "not a Kernel Tuner cache: a number of too many digits, or nested too deep"
    return MisplacedError(message, offset=offset)


def _parse_unfinished(text: str, cut: int) -> dict[str, Json]:
    """The header and every complete entry of a document whose end is missing."""
    opening = re.search(r'"cache"\s*:\s*\{', text)
    if opening is None:
        message = "not a Kernel Tuner cache: not JSON, or cut before its entries"
        raise MisplacedError(message, offset=cut)
    decoder = json.JSONDecoder()
    cache: dict[str, Json] = {}
    position = opening.end()
    try:
        document = json.loads(text[: opening.end()] + "}}")
        while (position := _skip(text, position, " \t\r\n,")) < len(text) and text[position] != "}":
            key, after_key = decoder.raw_decode(text, position)
            entry, after_entry = decoder.raw_decode(text, _skip(text, after_key, " \t\r\n:"))
            if not isinstance(key, str):
                raise MisplacedError("expected a key", offset=position)
            cache[key] = entry
            position = after_entry
    except json.JSONDecodeError as error:
        at_the_end = len(text.rstrip()) - error.pos <= _LONGEST_CUT_TOKEN
        if not (at_the_end or error.msg.startswith("Unterminated string")):
            raise MisplacedError(error.msg, offset=error.pos) from None
    except (ValueError, RecursionError):
        raise _absurd(text) from None
    return {**document, "cache": cache} if isinstance(document, dict) else {"cache": cache}


def _skip(text: str, position: int, characters: str) -> int:
    while position < len(text) and text[position] in characters:
        position += 1
    return position


def _parameters(header: Mapping[str, Json]) -> tuple[Parameter, ...]:
    names = header.get("tune_params_keys")
    domains = header.get("tune_params")
    if not isinstance(names, list) or not names or not isinstance(domains, dict):
        lost = "tune_params" if isinstance(names, list) and names else "tune_params_keys"
        message = '"tune_params_keys" and "tune_params" must name the parameters'
        raise MisplacedError(message, lost)
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise MisplacedError('"tune_params_keys" must be distinct names', "tune_params_keys")
    return tuple(_parameter(name, domains.get(name)) for name in names)


def _parameter(name: str, domain: Json) -> Parameter:
    if not isinstance(domain, list) or not domain or not all(map(_is_value, domain)):
        message = f"parameter {name} needs a list of numbers, strings or booleans"
        raise MisplacedError(message, "tune_params", name)
    values: list[Value] = list(dict.fromkeys(domain))
    if all(isinstance(value, bool) for value in values):
        return Boolean(name, values)
    if any(isinstance(value, (bool, str)) for value in values):
        return Categorical(name, values)
    return OrderedParameter(name, sorted(values))


def _is_value(value: Json) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (bool, int, str))


def _ranks(parameters: tuple[Parameter, ...]) -> _Ranks:
    """For each parameter, how much each of its values adds to a configuration's rank. Recorders
    write the same number as 1 and as 1.0: both find the domain's own value."""
    return [
        (p.name, {value: i * stride for i, value in enumerate(p.values)})
        for p, stride in zip(parameters, strides(parameters), strict=True)
    ]


def _entry(number: int, key: str) -> str:
    return f"entry {number} ({shorten(json.dumps(key))})"


def _unlisted(entry: str, key: str, values: Sequence[Json], ranks: _Ranks) -> MisplacedError:
    for (name, parts), value in zip(ranks, values, strict=True):
        if value is msgspec.UNSET:
            return MisplacedError(f"{entry} has no {name}", "cache", key)
        if not _is_value(value) or value not in parts:
            found = f"{name} = {shorten(repr(value))}"
            message = f'{entry} has {found}, which "tune_params" does not list'
            return MisplacedError(message, "cache", key, name)
    raise AssertionError("every value is listed")


def _time_or_failure(time: Json, error: Json) -> float | str | None:
    """An entry's time in ms, or its failure in words; None for an entry that has neither."""
    if error is msgspec.UNSET and type(time) is float and 0 < time < _FAILURE_TIME_MS:
        return time  # most entries are of this kind
    if error is not None and error is not msgspec.UNSET:  # where Kernel Tuner 1.5 stores failures
        return f"{error}"
    if time is msgspec.UNSET:
        return None
    if isinstance(time, str):
        return time
    is_number = isinstance(time, (int, float)) and not isinstance(time, bool)
    if is_number and 0 < time < _FAILURE_TIME_MS:  # false for NaN
        return float(time)
    return f"a time of {time!r} ms" if is_number else "no time"


# Turns other recordings into the shape of a Kernel Tuner cache.
#
# - T4 results (`{"results": [{configuration, invalidity, measurements, times}]}`), as Kernel
#   Tuner's `store_output_file` and the autotuning methodology write them.
# - evotune's own: the document of `evotune report RUN --format json`.
#
# Both list configurations without saying which values a parameter could have: its domain is the
# values that occur. When a configuration was measured more than once, its last record counts.
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
    """The document in the form of a cache, with `tune_params` and `cache`. A document that is a
    cache already, or has none of the known formats, is returned unchanged."""
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
    """Milliseconds in the unit. Raises MisplacedError if it is no unit of time."""
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
    if there is no such measurement."""
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


# The place of a mistake in a JSON text, looked for only when there is one.
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
    """The offset of the key or item at `path`. If the text does not have it, the offset of the last
    step that it has."""
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
