"""Puts figures into words, in the same way for tables, Markdown and progress lines."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evotune.report.leaderboard import Figures, Row
from evotune.store.facts import AblatedChange
from evotune.timing.processes import TOO_NOISY, fitness_by_process, spread
from evotune.trial import NamedFigures, Outcome, Value
from evotune.util.words import counted

NONE = "-"


def configuration_text(configuration: Mapping[str, Value]) -> str:
    """`NAME=value` for every parameter, booleans as YAML writes them."""
    return " ".join(f"{name}={value_text(value)}" for name, value in configuration.items())


def device_text(device: str, threads: int | None) -> str:
    """A device's name, for a CPU with the number of threads that were measured."""
    return device if threads is None else f"{device}, {counted(threads, 'thread')}"


def value_text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def difference_text(configuration: Mapping[str, Value], reference: Mapping[str, Value]) -> str:
    """The `configuration_text` of the parameters whose value differs from `reference`."""
    return configuration_text(difference(configuration, reference))


def difference(
    configuration: Mapping[str, Value], reference: Mapping[str, Value]
) -> dict[str, Value]:
    """The parameters of `configuration` whose value differs from `reference`."""
    return {
        name: value
        for name, value in configuration.items()
        if name not in reference or value_text(value) != value_text(reference[name])
    }


def counts_text(outcomes: Mapping[str, int]) -> str:
    """Counts by outcome, in the given order: `117 ok, 3 wrong_result`."""
    return ", ".join(f"{count} {kind}" for kind, count in outcomes.items())


def speedup_text(figures: Figures) -> str:
    """A speedup with its interval: `1.234x [1.220, 1.250]`."""
    if figures.speedup is None:
        return NONE
    text = f"{figures.speedup:.3f}x"
    if figures.speedup_low is None or figures.speedup_low == figures.speedup_high:
        return text
    return f"{text} [{figures.speedup_low:.3f}, {figures.speedup_high:.3f}]"


def result_text(figures: Figures) -> str:
    """The speedup, or the time for a recording, which has no baseline."""
    if figures.speedup is None:
        return f"{time_ms_text(figures.time_us)} ms"
    return speedup_text(figures)


def noise_text(outcome: Outcome) -> str:
    """The reason why an outcome's figures are uncertain; "" if they are not."""
    if TOO_NOISY not in outcome.flags:
        return ""
    share = spread(fitness_by_process(outcome))
    return f"too noisy: the same code varied by {share:.0%} from process to process"


def time_us_text(time_us: float | None) -> str:
    """Four significant digits, without an exponent."""
    if time_us is None or not math.isfinite(time_us):
        return NONE
    if time_us <= 0:
        return "0"
    return f"{time_us:.{max(0, 3 - math.floor(math.log10(time_us)))}f}"


def time_ms_text(time_us: float | None) -> str:
    return time_us_text(None if time_us is None else time_us / 1000)


def rate_text(value: float, unit: str) -> str:
    """A rate with three digits and a prefix: `972 TFLOP/s`, `3.88 TB/s`, `1.99 M launches/s`."""
    short = {"bytes/s": "B/s", "FLOP/s": "FLOP/s"}.get(unit, f" {unit}")
    sizes = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
    prefix, size = next((known for known in sizes if value >= known[1]), sizes[-1])
    figure = value / size
    digits = f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"
    return f"{digits} {prefix}{short if prefix else short.strip()}".strip()


def time_text(time_us: float) -> str:
    """A time with three digits and a suitable unit: `5.12 ms`, `87.0 µs`."""
    units = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
    size, unit = next((known for known in units if time_us >= known[0]), units[-1])
    figure = time_us / size
    if not math.isfinite(figure) or figure <= 0:
        return f"{NONE} {unit}"
    return f"{figure:.{max(0, 2 - math.floor(math.log10(figure)))}f} {unit}"


def error_share_text(figures: Figures) -> str:
    """The error as a share of its limit, `31%`, or the error itself if it has no limit. `-` if
    neither exceeds the rounding of the result."""
    if figures.error is None or figures.rounding:
        return NONE
    if figures.error == 0:
        return "0%"
    if not figures.error_limit:
        return f"{figures.error:.1e}"
    percent = figures.error / figures.error_limit * 100
    return "<1%" if percent < 1 else f"{percent:.0f}%"


def error_text(figures: Figures) -> str:
    """The `error / limit` of the check that came closest to failing; `-` as in
    `error_share_text`."""
    if figures.error is None or figures.rounding:
        return NONE
    limit = NONE if figures.error_limit is None else f"{figures.error_limit:.1e}"
    return f"{figures.error:.1e} / {limit}"


def flags_text(row: Row) -> str:
    """A row's flags, and the number of its duplicates."""
    folded = [f"+{len(row.duplicates)} duplicates"] if len(row.duplicates) > 1 else []
    folded = folded or (["+1 duplicate"] if row.duplicates else [])
    return ", ".join((*row.outcome.flags, *folded))


def beside_text(beside: Mapping[int, Sequence[str]]) -> str:
    """Other work in a line: `another evotune run is measuring (process 7); from trial 40 on: GPU is
    30% busy`."""
    parts = []
    for trials, work in beside.items():
        when = f"from trial {trials} on: " if trials else ""
        parts.append(when + ", ".join(work))
    return "; ".join(parts)


def compiled_text(resources: NamedFigures) -> str:
    """The compiler's figures: `148 registers, no spills, 21% occupancy`; "" if it reports no
    registers."""
    if "registers" not in resources:
        return ""
    spill_bytes = resources.get("spill_bytes", 0)
    parts = [f"{resources['registers']} registers"]
    parts.append(f"{spill_bytes} bytes of spills" if spill_bytes else "no spills")
    if "occupancy" in resources:
        parts.append(f"{resources['occupancy']:.0%} occupancy")
    return ", ".join(parts)


def duration_text(seconds: float) -> str:
    """A duration: `48 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def stage_text(seconds: float) -> str:
    """A stage's time in one trial: `87.3 ms`, or `12.3 s` from ten seconds on."""
    return f"{seconds * 1000:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"


def state_text(state: str) -> str:
    """The stored state of a run in words."""
    kind, _, why = state.partition(":")
    if kind != "finished":
        return {"killed": "killed (resumable)", "interrupted": "interrupted (resumable)"}.get(
            kind, kind
        )
    return f"finished ({_ENDS.get(why, 'every configuration tried' if why else 'done')})"


TIMED_ALONE = (
    "These baselines were timed alone. Do not divide their times by times of the leaderboard: "
    "its speedups come from timing kernel and baseline in alternation."
)


def ended_text(reason: str) -> str:
    """Why a search ended, in words."""
    return _ENDS.get(reason, reason)


_ENDS = {
    "trials": "trial budget spent",
    "minutes": "search time spent",
    "compiles": "compile budget spent",
    "speedup": "target speedup reached",
    "no_improvement": "no improvement for too long",
}


# Rows of a stored ablation.


def change_text(row: AblatedChange) -> str:
    """A change in words: `BLOCK_M 64 to 32`, with other changes that were needed for a valid
    configuration."""
    if not row.parameter:
        return "nothing (the champion against itself)"
    before, after = map(value_text, row.values)
    others = configuration_text(row.also)
    return f"{row.parameter} {before} to {after}" + (f" (with {others})" if others else "")


def ratio_text(row: AblatedChange) -> str:
    """A change's ratio: `0.812x [0.801, 0.820]`, or the outcome and reason if there is no ratio."""
    speed = row.speed
    if speed is None:
        return f"{row.outcome}: {row.reason}" if row.reason else row.outcome
    figure = f"{speed.value:.3f}x [{speed.low:.3f}, {speed.high:.3f}]"
    return f"{figure}, same code" if row.same_code and row.parameter else figure


# Groups failures by reason: reasons that differ only in numbers are one, with an example.
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Reason:
    """How many `trials` ended in `kind` for similar reasons, and the first reason as an
    `example`."""

    kind: str
    example: str
    trials: int


def alike_reasons(failures: Iterable[tuple[str, str]]) -> list[Reason]:
    """Groups (kind, reason) of each failed trial; the most frequent come first."""
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for (kind, reason), count in Counter(failures).items():
        pattern = (kind, _NUMBER.sub("#", reason))
        counts[pattern] += count
        examples.setdefault(pattern, reason)
    return [Reason(key[0], examples[key], count) for key, count in counts.most_common()]
