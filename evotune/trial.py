"""The values that all parts of evotune share: Configuration, Outcome, Trial.

All are immutable and convert to JSON and back without loss, because the run's store, the worker
processes and the reports use them. `OBJECTIVES` are figures of a valid outcome; for each, higher is
better.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from evotune.util.channel import plain

Value: TypeAlias = bool | int | float | str
Json: TypeAlias = Any  # what json.loads returns
Figure: TypeAlias = bool | int | float | str | list[str] | None
DeviceState: TypeAlias = Mapping[str, Figure]
"""Clocks, power, temperature and throttling of a device, if it reports them."""
NamedFigures: TypeAlias = Mapping[str, Figure | Mapping[str, Figure | Mapping[str, Figure]]]
"""Figures of a compiler or a device by name, some of them by two or three names."""

_encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes an encoder each time
_decode = msgspec.json.Decoder().decode
_decode_values = msgspec.json.Decoder(dict[str, Value]).decode


def number(figures: NamedFigures, name: str) -> float | None:
    """The figure `name` if it is a number, else None."""
    found = figures.get(name)
    return found if isinstance(found, int | float) else None


def whole(figures: NamedFigures, name: str) -> int:
    """The figure `name` as an integer; 0 if it is no number."""
    return int(number(figures, name) or 0)


def throttled_by(state: DeviceState) -> tuple[str, ...]:
    """Why the device runs below its full clock rate; empty if it does not."""
    found = state.get("throttled_by")
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


def parse_json(text: str) -> Json:
    """Like `json.loads`, but much faster, because a store has millions of texts."""
    try:
        return _decode(text)
    except ValueError:  # msgspec is strict: it also refuses NaN and half of a surrogate pair
        return json.loads(text)


class Configuration(Mapping[str, Value]):
    """One value for every parameter of a space, in the space's order; hashable.

    Inactive conditional parameters have their canonical value, so equal configurations are equal
    objects. `key` is the canonical text: compact JSON with the names in order.
    """

    __slots__ = ("_key", "_values")

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values: dict[str, Value] = dict(values)
        self._key: str | None = None  # made at its first use, as listing a space needs no key

    @property
    def key(self) -> str:
        if self._key is None:
            self._key = _encode(self._values)
        return self._key

    @classmethod
    def from_key(cls, key: str) -> Configuration:
        """The configuration with that `key`. Raises ValueError for text that is not a JSON object
        of values."""
        configuration = cls.__new__(cls)
        try:
            configuration._values = _decode_values(key)
        except ValueError:
            configuration._values = msgspec.convert(json.loads(key), dict[str, Value])
        configuration._key = key
        return configuration

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Configuration):
            return self.key == other.key
        return NotImplemented

    def __repr__(self) -> str:
        return f"Configuration({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def to_json(self) -> dict[str, Value]:
        return dict(self._values)


class OutcomeKind(enum.StrEnum):
    """How a trial ended. Only OK has a fitness."""

    OK = "ok"
    REJECTED = "rejected"  # a constraint or a device limit, before any compiler ran
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    COMPILE_CRASH = "compile_crash"
    RESOURCE_LIMIT = "resource_limit"  # too many registers, too much shared memory
    LAUNCH_ERROR = "launch_error"
    ILLEGAL_ACCESS = "illegal_access"  # CUDA sticky error, or SIGSEGV/SIGBUS on the CPU
    DEVICE_OOM = "device_oom"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"
    NAN = "nan"
    OUT_OF_BOUNDS = "out_of_bounds"  # wrote outside its buffers, or into its inputs
    NONDETERMINISTIC = "nondeterministic"
    TOO_FAST = "too_fast"
    WORKER_LOST = "worker_lost"
    DEVICE_LOST = "device_lost"
    UNDECIDED = "undecided"  # the machine was too busy to judge a time: neither right nor wrong


ACCEPTED = "accepted by same"
"""Detail of a passed check in which the problem itself judged the outputs."""
CUT_SHORT = "cut_short"
"""Flag of a confirmation that had no time for all checks or processes. Skipped checks say which,
and the domain has only what was executed."""
TOO_NOISY = "the machine is too noisy"
"""The first words of an undecided outcome's reason, after the case."""
QUARANTINED = "quarantined"
"""Flag of an outcome: the configuration ended two workers, and was alone in the second one."""


class Measurement(msgspec.Struct, frozen=True):
    """Paired timing of one case (shape x variant). Times in microseconds.

    - speedup: the median of the paired baseline/candidate ratios, or the geometric mean of
      `processes`.
    - speedup_low, speedup_high: its 95% interval (bootstrap). With several processes the interval
      covers the spread between them.
    - processes: the speedup in each process, if the case was measured in several.
    - cache: `warm` (the same buffers again and again) or `cold` (buffers rotated over more memory
      than the caches hold). A cold measurement has no part in the fitness.
    - held_out: whether the case has no part in the fitness.
    - state: the device's clocks, power, temperature and throttling right after the last sample.
    - retakes: how many earlier takes were discarded because the device slowed down in them.
    - throttled: whether the device slowed down in this take too.
    - eager_us, eager_baseline_us: wall-clock times per call without a graph, as a PyTorch user sees
      them; None if they were not taken.
    """

    case: str
    time_us: float
    time_min_us: float
    baseline: str
    baseline_us: float
    speedup: float
    speedup_low: float
    speedup_high: float
    samples: int
    cache: str = "warm"
    held_out: bool = False
    state: DeviceState = msgspec.field(default_factory=dict)
    retakes: int = 0
    throttled: bool = False
    eager_us: float | None = None
    eager_baseline_us: float | None = None
    processes: tuple[float, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether the measurement is part of the trial's fitness."""
        return self.cache == "warm" and not self.held_out

    def to_json(self) -> dict[str, Json]:
        return msgspec.structs.asdict(self)


class Check(msgspec.Struct, frozen=True):
    """One check of the correctness gate on one case and input kind.

    Each element's error against the float64 reference is taken as a share of the element's limit.
    `max_error` and `rms_error` are the maximum and the RMS of these shares, see
    `evotune.verify.accuracy`. With `rounding`, errors and limits do not exceed the rounding of the
    result, and the shares mean nothing.
    """

    case: str
    inputs: str
    status: str  # passed, failed, skipped
    max_error: float | None = None
    max_limit: float | None = None
    rms_error: float | None = None
    rms_limit: float | None = None
    detail: str = ""
    rounding: bool = False

    def to_json(self) -> dict[str, Json]:
        return msgspec.structs.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Check:
        """Raises ValueError if a value has another type than its field."""
        return msgspec.convert(data, cls)


class ExecutedLengths(msgspec.Struct, frozen=True):
    """The lengths of the quantity `name` that were executed one by one, with these ratios of sizes
    (`alike`). Of large lengths, one for each remainder mod the tile sizes represents the others."""

    name: str
    alike: Mapping[str, int]
    ranges: tuple[tuple[int, int], ...]


class Region(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cases of one binary on which a champion was right.

    - fixed: the values that all cases share (dtype, mask, a size that is compiled in).
    - ranges: the least and the greatest value of every other quantity.
    - cases: the number of cases.
    - pairs: for each pair of sizes, the bands that were executed together
      (`evotune.problems.executed_sizes`). Empty in an older store.
    - executed: the lengths that were executed one by one; None in an older store, and if none had
      to be.
    - mask_sizes: the ways in which masks were broadcast; see `evotune.problems.problem.Place`.

    A case is inside if it has the fixed values, none of its other values is out of range, the
    bands of each two of its sizes were executed together, and its mask is broadcast as one was.
    """

    fixed: Mapping[str, Value]
    ranges: Mapping[str, tuple[int | float, int | float]]
    cases: int
    pairs: Mapping[str, tuple[tuple[int, int], ...]] = msgspec.field(default_factory=dict)
    executed: tuple[ExecutedLengths, ...] | None = None
    mask_sizes: tuple[str, ...] = ()


class Domain(msgspec.Struct, frozen=True):
    """The cases and the device on which a champion was checked. Anything not tried is outside.

    - device: the device's model.
    - multiprocessors: the number of multiprocessors; 0 on a CPU.
    - regions: the cases.
    - layout: the layouts of the tensors, by name.
    """

    device: str
    multiprocessors: int
    regions: tuple[Region, ...]
    layout: str = "contiguous"

    def to_json(self) -> dict[str, Json]:
        found: dict[str, Json] = msgspec.to_builtins(self)
        return found


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one trial. The fields are in the order in which they are stored.

    - fitness: the mean over cases of ln(speedup), or -ln(time) on a recorded space. Higher is
      better; None unless `kind` is OK.
    - reason: one line for people.
    - log: the end of the compiler's or the worker's output.
    - stage_s: seconds in each stage.
    - resources: the compiler's figures (registers, shared bytes, spills, ...).
    - domain: the cases on which a champion was checked; only in a confirmation that passed.
    """

    kind: OutcomeKind
    fitness: float | None = None
    fitness_low: float | None = None
    fitness_high: float | None = None
    duplicate_of: int | None = None
    reason: str = ""
    log: str = ""
    binary: str = ""  # SHA-256 of machine code and launches; "" when nothing was to be launched
    flags: tuple[str, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    checks: tuple[Check, ...] = ()
    stage_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    resources: NamedFigures = msgspec.field(default_factory=dict)
    domain: Domain | None = None

    def __post_init__(self) -> None:
        finite = self.fitness is not None and math.isfinite(self.fitness)
        if (self.kind is OutcomeKind.OK) != finite:
            raise ValueError(f"{self.kind} with fitness {self.fitness}")

    @property
    def ok(self) -> bool:
        return self.kind is OutcomeKind.OK

    @property
    def undecided(self) -> bool:
        """Whether the machine was too noisy to judge the kernel, which then counts as not
        measured."""
        return self.kind is OutcomeKind.UNDECIDED

    @property
    def device_state(self) -> Mapping[str, Figure | Mapping[str, Figure]]:
        """The clocks, power and temperature that the device reported after the trial."""
        found = self.resources.get("device")
        return found if isinstance(found, Mapping) else {}

    @property
    def device_model(self) -> str:
        """The model of the device that measured it, if the run has several devices; else ""."""
        return str(self.device_state.get("model", ""))

    @property
    def recorded_time_us(self) -> float | None:
        """The configuration's time in a recorded space; None in any other run."""
        time_ms = self.resources.get("time_ms")
        return time_ms * 1000 if self.ok and isinstance(time_ms, int | float) else None

    def to_json(self) -> dict[str, Json]:
        """The outcome as it is stored: only the fields that differ from their defaults, so that
        failures stay small."""
        fields: dict[str, Json] = msgspec.to_builtins(self, enc_hook=plain)
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Outcome:
        """Raises ValueError if a value has another type than its field, here or in a part."""
        return msgspec.convert(data, cls)

    @classmethod
    def from_text(cls, text: str) -> Outcome:
        """The outcome from the JSON text that `to_json` wrote. Raises the errors of `from_json`."""
        try:
            return _decode_outcome(text)
        except ValueError:
            return cls.from_json(json.loads(text))


_decode_outcome = msgspec.json.Decoder(Outcome).decode


class Calibration(msgspec.Struct, frozen=True):
    """How one of several devices measures the same baselines and the same configuration.

    `reason`: why the reference has no speedup.
    """

    id: str
    model: str
    baseline_us: Mapping[str, float]
    reason: str
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None

    def __post_init__(self) -> None:
        speedups = (self.speedup, self.speedup_low, self.speedup_high)
        figures = [*self.baseline_us.values(), *(s for s in speedups if s is not None)]
        if not all(figure > 0 for figure in figures):
            raise ValueError("a device without figures")


class Trial(NamedTuple):
    """Proposal `number` of a run, with its configuration and outcome."""

    number: int
    configuration: Configuration
    outcome: Outcome

    def __str__(self) -> str:
        """One line: the number, the speedup with its 95% interval or the failure, the values."""
        outcome, found = self.outcome, str(self.outcome.kind)
        if outcome.fitness is not None and outcome.measurements:
            ends = (outcome.fitness, outcome.fitness_low, outcome.fitness_high)
            speedup, low, high = (math.inf if end is None else math.exp(end) for end in ends)
            found = f"{speedup:.3f}x [{low:.3f}, {high:.3f}]"
        elif outcome.reason:
            found += f": {outcome.reason}"
        values = " ".join(f"{name}={value!r}" for name, value in self.configuration.items())
        return f"trial {self.number}: {found}, {values}"


_UNCHECKED_SHARE: Final = 1.0  # the largest share of its limit that a passed check can have used


def worst_check(checks: Iterable[Check]) -> Check | None:
    """The check whose maximum error used the largest share of its limit. A failed check comes
    before a passed one. None if no check has a maximum error."""
    made = [check for check in checks if check.status != "skipped" and check.max_error is not None]
    if not made:
        return None
    return max(made, key=lambda check: (check.status == "failed", error_share(check)))


def error_share(check: Check) -> float:
    """The check's maximum error as a share of its limit; infinite when that is NaN."""
    error, limit = check.max_error or 0.0, check.max_limit
    share = error / limit if limit else error
    return math.inf if math.isnan(share) else share


def _speedup(outcome: Outcome) -> float:
    """ln of the speedup's geometric mean over the timed cases."""
    assert outcome.fitness is not None
    return outcome.fitness


def _accuracy(outcome: Outcome) -> float:
    """The negative share of its limit that the error used, in the check that used most."""
    check = worst_check(outcome.checks)
    return -(_UNCHECKED_SHARE if check is None else error_share(check))


OBJECTIVES: Final[Mapping[str, Callable[[Outcome], float]]] = {
    "speedup": _speedup,
    "error": _accuracy,
}
SINGLE_OBJECTIVE: Final = ("speedup",)


def objective_values(outcome: Outcome, objectives: Iterable[str]) -> tuple[float, ...]:
    """The figures of a valid outcome, in the order of `objectives`."""
    return tuple(OBJECTIVES[name](outcome) for name in objectives)
