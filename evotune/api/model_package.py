"""What `tune_model` returns: the package, the model's calls of attention, and what it gains."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from evotune.recorder.calls import RecordedCall
from evotune.space.reading.case_file import CaseEntry
from evotune.trial import Measurement, Value
from evotune.util.commands import install_command, use
from evotune.util.words import counted, printable

if TYPE_CHECKING:
    from evotune.api.loaded_packages import LoadedPackages

_WIDTH = 100
_NAMES = 12  # columns
_MOST_ROWS = 12
_MOST_REASONS = 6
FAST_PATH_OFF = "torch.backends.mha.set_fastpath_enabled(False)"


class Gain(msgspec.Struct, frozen=True):
    """How many times as fast something is with the package: a median and its 95% interval."""

    speedup: float
    low: float
    high: float
    without_us: float
    with_us: float

    @classmethod
    def of(cls, m: Measurement) -> Gain:
        return cls(m.speedup, m.speedup_low, m.speedup_high, m.baseline_us, m.time_us)

    @property
    def measurable(self) -> bool:
        """Whether the interval does not hold 1."""
        return self.low > 1.0 or self.high < 1.0

    def __str__(self) -> str:
        what = f"{self.speedup:.3f}x" if self.measurable else "no measurable change"
        return f"{what} [{self.low:.3f}, {self.high:.3f}]"


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """Equal calls of attention of a model.

    - `problem`, `shape`, `variant`, `dtype`, `call`: as a file of cases has them.
    - `count`: how often the model makes the call; `time_us`: of one call without the package.
    - `gain`: None if no kernel serves the call, and `why` says why.
    - `fault`: how a served call's result differs from SDPA's, in words; "" if it agrees.
    """

    problem: str
    shape: dict[str, Value]
    variant: dict[str, Value]
    dtype: str
    call: dict[str, Any]
    count: int
    time_us: float
    gain: Gain | None = None
    why: str = ""
    fault: str = ""

    def entry(self, weight: float) -> CaseEntry:
        """The case with this weight."""
        facts = self.shape, self.variant, self.dtype
        return CaseEntry({}, *facts, weight, problem=self.problem, call=self.call)

    @property
    def recorded(self) -> RecordedCall:
        return RecordedCall(self.entry(self.count), self.count)

    @property
    def case(self) -> str:
        """The case in words, with its mask."""
        return ", ".join(filter(None, (self.recorded.label, self.recorded.mask)))

    @property
    def total_us(self) -> float:
        """The time of all these calls without the package."""
        return self.count * self.time_us


class ModelPackage(msgspec.Struct, kw_only=True):
    """The package of a model, and what it gains. It is true if a kernel won.

    - `what`: the model and its inputs, or the script, in words. `device`: its name.
    - `calls`: of attention, the most expensive first.
    - `gains`: of the whole model, by the way in which it was timed: `eager`, `compiled`, `graph`,
      or `script`. Empty if no call is served or results differ. `skipped`: why a way was not timed.
    - `error`, `allowed`: the largest difference of the model's results with and without the
      package, and the one that rounding may make. `fault`: why results do not agree; "" if they do.
    - `folders`: the modules' folders; calls of each dtype have a package of their own.
    - `fast_path_off`: whether PyTorch's fast path for layers must be off, so that they call SDPA.
    - `again`: how to tune for the misses; "" if that is of no use.
    """

    what: str
    device: str = ""
    calls: list[ModelCall]
    gains: dict[str, Gain] = {}
    skipped: dict[str, str] = {}
    error: float = 0.0
    allowed: float = 0.0
    fault: str = ""
    folders: list[str] = []
    fast_path_off: bool = False
    again: str = ""

    def set_calls(self, calls: list[ModelCall]) -> bool:
        """Returns whether the package serves any, and all of these rightly."""
        self.calls = calls
        self.fault = next((f"{call.case}: {call.fault}" for call in calls if call.fault), "")
        return not self.fault and self.served_share > 0

    @property
    def path(self) -> Path | None:
        """The first package's folder, which pip installs; None if no kernel won."""
        return Path(self.folders[0]).parent if self.folders else None

    @property
    def misses(self) -> list[ModelCall]:
        """The calls that no kernel serves, each with the reason."""
        return [call for call in self.calls if call.gain is None]

    @property
    def served_share(self) -> float:
        """Of the time of attention."""
        whole = sum(call.total_us for call in self.calls)
        return 1.0 - sum(call.total_us for call in self.misses) / whole if whole else 0.0

    @property
    def attention(self) -> Gain | None:
        """The gain of all calls of attention together, misses included; None if none is served or
        results differ. Its bounds are those of all calls at once, so it is rather wide."""
        if self.fault or len(self.misses) == len(self.calls):
            return None
        before = sum(call.total_us for call in self.calls)

        def after(bound: str) -> float:
            return sum(c.total_us / (getattr(c.gain, bound) if c.gain else 1) for c in self.calls)

        middle, low, high = (after(bound) for bound in ("speedup", "low", "high"))
        return Gain(before / middle, before / low, before / high, before, middle)

    def activate(self) -> None:
        """Lets the package serve F.scaled_dot_product_attention in this process."""
        self._loaded().activate()

    def deactivate(self) -> None:
        """Undoes `activate`."""
        self._loaded().deactivate()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Lets the package serve for a block."""
        with self._loaded().active():
            yield

    def _loaded(self) -> LoadedPackages:
        from evotune.api.loaded_packages import LoadedPackages

        return LoadedPackages(self.folders, fast_path_off=self.fast_path_off)

    def __bool__(self) -> bool:
        return bool(self.folders)

    def __repr__(self) -> str:
        return f"<package of {self.what}: {self.served_share:.0%} of attention served>"

    def __str__(self) -> str:
        """One screen: calls, gains, what is not served and why, and how to go on."""
        return "\n".join(printable(line).rstrip() for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.what} on {self.device}"
        yield ""
        yield from self._table()
        yield from self._gains()
        yield from self._not_served()
        for folder in map(Path, self.folders):
            yield from _told("package", str(folder.parent))
            yield from _told("use it", install_command(folder.parent))
            yield from _told("", use(folder.name, "attention"))
        if self.folders and self.fast_path_off:
            yield from _told("", FAST_PATH_OFF)
        if self.again:
            yield from _told("misses", self.again)

    def _table(self) -> Iterator[str]:
        if not self.calls:
            yield "no call of attention was seen"
            return
        whole = sum(call.total_us for call in self.calls) or 1.0
        rows = [("calls", "case", "dtype", "of attention", "with the package")]
        for call in self.calls[:_MOST_ROWS]:
            gain = "not served" if call.gain is None else "wrong" if call.fault else str(call.gain)
            share = f"{call.total_us / whole:.1%}"
            rows.append((f"{call.count:,}", call.case, call.dtype, share, gain))
        if rest := self.calls[_MOST_ROWS:]:
            share = f"{sum(call.total_us for call in rest) / whole:.1%}"
            served = f"{sum(call.gain is not None for call in rest)} served"
            count = f"{sum(call.count for call in rest):,}"
            rows.append((count, f"{len(rest)} more cases", "", share, served))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            padded[0], padded[3] = row[0].rjust(widths[0]), row[3].rjust(widths[3])
            yield "  ".join(padded)
        yield ""

    def _gains(self) -> Iterator[str]:
        if not self.calls:
            return
        told = f"{self.served_share:.1%} of its time is served"
        attention = self.attention
        yield from _told("attention", f"{attention}; {told}" if attention else told)
        if self.fault:
            yield from _told("result", f"{self.fault}: no gain is reported")
        for way, gain in self.gains.items():
            times = f", {_time(gain.without_us)} before, {_time(gain.with_us)} now"
            slower = "; do not use the package so" if gain.high < 1.0 else ""
            yield from _told(way, f"{gain}{times if gain.measurable else ''}{slower}")
        for way, why in self.skipped.items():
            yield from _told(way, f"not timed: {why}")
        if self.allowed and not self.fault:
            agrees = f"agrees: largest difference {self.error:.1e}, {self.allowed:.1e} allowed"
            yield from _told("result", agrees)

    def _not_served(self) -> Iterator[str]:
        """The reasons, each with its most expensive case."""
        by_reason: dict[str, list[ModelCall]] = {}
        for call in self.misses:
            by_reason.setdefault(call.why, []).append(call)
        for number, (why, calls) in enumerate(by_reason.items()):
            name = "" if number else "not served"
            if number == _MOST_REASONS:
                yield from _told(name, counted(len(by_reason) - number, "more reason"))
                return
            more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
            yield from _told(name, f"{calls[0].case}{more}: {why}")


def _told(name: str, text: str) -> Sequence[str]:
    """The text beside a name, in as many lines as it needs."""
    lines = textwrap.wrap(text, _WIDTH - _NAMES, break_on_hyphens=False) or [""]
    return [f"{'' if at else name:{_NAMES}}{line}" for at, line in enumerate(lines)]


def _time(us: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"
