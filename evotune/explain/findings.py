"""The content of an explanation as data. `Explanation` adds text and HTML.

Every statement has evidence of one of these kinds:

    measured   counters of the device, paired or unpaired times, compilers' figures
    static     counts in the machine code, figures of the launch
    model      predicted from ceilings and the problem's work, or by the search's Gaussian process

A part that is missing is named in `missing`, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from evotune.trial import Json, Value

Kind: TypeAlias = Literal["measured", "static", "model"]


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of evidence in words, with its numbers by name."""

    text: str
    kind: Kind
    numbers: Mapping[str, float] = {}


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One ceiling of the roofline.

    - `name`: tensor cores, MUFU, issue slots, shared memory, L2, DRAM, FMA, launch.
    - `rate`: the ceiling, in `unit`; None if only a counter gives the share.
    - `work`: the problem's demand, in the same unit without "/s"; None if it is unknown.
    - `share`: the part of the time for which the unit is busy, 0 to 1.
    """

    name: str
    unit: str
    rate: float | None
    work: float | None
    share: float
    kind: Kind


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """The roofline of a kernel: its performance on one case, compared with the device's ceilings.

    - `intensity`: operations / bytes moved.
    - `ceilings`: measured or model.
    - `exceeded`: the ceilings, in words, that the kernel itself exceeds, so that they cannot limit
      it.
    """

    case: str
    time_us: float
    operations: int
    bytes_moved: int
    exponentials: int
    intensity: float
    ceilings: str
    units: tuple[Unit, ...]
    exceeded: tuple[str, ...] = ()


class MachineCode(msgspec.Struct, frozen=True, kw_only=True):
    """Counts in the machine code of the longest launch, known without running it.

    - `source`: the program or the text that was read: `nvdisasm 12.8`, `objdump 2.40`, `ptx`.
    - `instructions`: the count of each class, in the innermost loops if `in_loops`, else in the
      whole code.
    - `warps`, `max_warps`: the warps that are resident on a multiprocessor and the most that could
      be; `bound_by` limits them. None on a CPU.
    """

    kernel: str
    source: str
    instructions: Mapping[str, int]
    in_loops: bool
    registers: int
    spilled_bytes: int
    warps: int | None = None
    max_warps: int | None = None
    bound_by: str = ""


class Limiter(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the device, or the trait of the kernel, that sets its time.

    - `name`: "" when the evidence supports no statement.
    - `share`: the part of the time that the limiter takes or is busy, 0 to 1; None if not known.
    - `rule`: the rule that chose it.
    """

    name: str
    share: float | None
    rule: str
    evidence: tuple[Fact, ...]


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The worth of one value of the explained configuration.

    - `to`: its value.
    - `source` (JSON: `from`): the other value.
    - `worth`: time with the other value / time with this one, with a 95% interval. Above 1 this
      value is faster. None if the other value failed.
    - `basis`: paired (measured in alternation), trials (speedups of the run's trials), model.
    - `because`: the difference in the machine that explains it; "" if none is known.
    """

    parameter: str
    source: Value = msgspec.field(name="from")
    to: Value
    worth: float | None
    low: float | None
    high: float | None
    basis: Literal["paired", "trials", "model"]
    outcome: str = "ok"
    reason: str = ""
    also: Mapping[str, Value] = {}
    same_code: bool = False
    because: str = ""


class Importance(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter's share of the variation; the shares of all parameters add up to 1. `best`: by
    the run's best trials (PED-ANOVA). `model`: in the model; None without one."""

    parameter: str
    best: float
    model: float | None


class Marginal(msgspec.Struct, frozen=True, kw_only=True):
    """The mean speed of a value over the space relative to the mean over all values of its
    parameter, by the model. `trials`: the number of valid trials with the value."""

    parameter: str
    value: Value
    worth: float
    low: float
    high: float
    trials: int


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two choices whose worth depends on each other.

    `alone`: the worth of `parameter` going from `source` to `to` while `other` has `other_value`;
    `together`: its worth while `other` has its value in the explained configuration. `factor`:
    together / alone, with its 95% interval. `basis`: the mean over the best configurations by the
    model, or measured around the explained one. `because`: what limits the kernel while `other` has
    the other value; "" if unknown.
    """

    parameter: str
    source: Value = msgspec.field(name="from")
    to: Value
    other: str
    other_value: Value
    other_to: Value
    alone: float
    together: float
    factor: float
    low: float
    high: float
    text: str
    basis: Literal["paired", "model"] = "model"
    because: str = ""


class Hopeless(msgspec.Struct, frozen=True, kw_only=True):
    """A value with which no trial was valid, and why."""

    parameter: str
    value: Value
    trials: int
    text: str


class Cliff(msgspec.Struct, frozen=True, kw_only=True):
    """A step in time along an ordered parameter that coincides with a step in a figure of the
    compiler.

    - `slowdown`: time after the step / time before it.
    - `figure`: spill_bytes, registers, shared_bytes_total or blocks_resident.
    """

    parameter: str
    before: Value
    after: Value
    slowdown: float
    figure: str
    figure_before: float
    figure_after: float
    trials: tuple[int, int]
    text: str


class OverSpace(msgspec.Struct, frozen=True, kw_only=True):
    """Effects over the whole space, from the run's trials alone."""

    trials: int
    valid: int
    importance: tuple[Importance, ...] = ()
    marginals: tuple[Marginal, ...] = ()
    pairs: tuple[Pair, ...] = ()
    hopeless: tuple[Hopeless, ...] = ()
    cliffs: tuple[Cliff, ...] = ()


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One difference in the machine. `first`: the explained candidate's figure. `second`: the
    other's. Either is None if it is unknown. `text`: both with their unit."""

    figure: str
    first: float | None
    second: float | None
    text: str
    kind: Kind


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """The explained candidate against another one.

    - `worth`: the other's time / this one's; None if unknown.
    - `low`, `high`: its 95% interval; None if the two times are not from one run.
    - `changed`: by parameter, this candidate's value and the other's.
    - `lines`: most telling first.
    """

    name: str
    worth: float | None
    low: float | None = None
    high: float | None = None
    changed: Mapping[str, tuple[Value | None, Value | None]]
    headline: str
    lines: tuple[Line, ...]


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to try.

    - `kind`: `configuration` (in the space: `--try` measures it), `space` (a value outside of it),
      `constraint` (one that binds), `technique` (a change of the kernel).
    - `rule`: how the limiter leads to it.
    - `estimate`: the present time / the expected time, with a 95% interval if there is one.
    - `measured`: the same ratio, measured by `--try`; None if it was not tried.
    """

    kind: Literal["configuration", "space", "constraint", "technique"]
    text: str
    rule: str
    estimate: float
    low: float | None = None
    high: float | None = None
    configuration: Mapping[str, Value] | None = None
    measured: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None
    outcome: str = ""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Why a candidate is as fast as it is.

    - `trial`: its number; `configuration`: its values.
    - `time_us`, `speedup`: on the explained case; None if there is none.
    - `counters`: the counters of its longest launch, or `{"unavailable": reason}`.
    - `machine_code`: counts in the code of its longest launch; None if it was not read.
    - `missing`: each part that was not measured, and why.
    """

    run: str
    space: str
    trial: int
    configuration: Mapping[str, Value]
    device: str
    time_us: float | None
    speedup: float | None
    headline: str
    limiter: Limiter
    roofline: Roofline | None
    counters: Mapping[str, Json]
    machine_code: MachineCode | None
    effects: tuple[Effect, ...]
    over_space: OverSpace
    against: Against | None
    next: tuple[Suggestion, ...]
    missing: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        """The explanation as JSON-able data. The writer must handle numbers that JSON cannot
        represent."""
        found: dict[str, Json] = msgspec.to_builtins(self)
        return found
