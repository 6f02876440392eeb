"""Values of inputs that show wrong kernels: floats by kind of inputs, and integers of a range."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch

from evotune.problems.problem import table_on

_TRAITS = 5
_LARGE_TRAITS = ("spread", "above", "far", "below", "rising", "far", "falling", "masked")
_SPIKES = (12.5, 6.5, 11.0, 8.0, 13.0, 9.5)
_SHORT = 64  # columns
_NEIGHBOURS = (2.0**-7, 2.0**-10)  # a unit in the last place of 1 in half precision
_FAR = (-2e4, 2e4, -1e6, 1e6, -600.0)
_FAR_SPREAD = 0.1
"""As a share of the value: sums of nearly equal numbers have rounding errors that add up."""
_MASKED = -1e4  # or the lowest number
NEAR = 512.0
"""All rows but far ones, and masked columns, lie within it."""
_NEARER, _NEAREST = 2.0**-6, 300.0
_BEYOND_FLOAT16, _BEYOND_FAR = 6e4, 1e8
_NEAR_AN_END = 256


@contextlib.contextmanager
def all_digits(dtype: torch.dtype) -> Iterator[None]:
    """A context in which torch draws float64 numbers for a tensor of that type: float32 ones would
    not show a kernel that drops their last 29 bits."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if dtype == torch.float64 else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def input_values(shape: tuple[int, ...], kind: str, generator: torch.Generator) -> torch.Tensor:
    """Values of torch's default type on the generator's device."""
    device = generator.device
    values = torch.randn(shape, generator=generator, device=device)
    if kind == "normal" or not shape:
        return values
    rows, columns = values.reshape(-1, shape[-1]), shape[-1]
    turn = torch.randint(2520, (1,), generator=generator, device=device)
    turn = turn + torch.arange(len(rows), device=device)
    if kind == "large":
        rows = _large(rows, turn)
    elif kind == "ramp":
        count = torch.arange(values.numel(), device=device) % 251
        rows = (count / 125.0 - 1.0).reshape(rows.shape) + 0.001 * rows
        if len(shape) > 1:
            # Zeros of both signs are equal, so the first one of a row is its highest value.
            signed = torch.where(torch.arange(columns, device=device) % 2 == 0, -0.0, 0.0)
            rows[turn % _TRAITS == 0] = signed
            rows[turn % _TRAITS == 1, 0] = 0.0  # another one only begins with a zero
    elif kind == "spike":
        rows = _spikes(rows, turn)
    return rows.reshape(shape)


def _large(rows: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    columns, device = rows.shape[1], rows.device
    step = turn // len(_LARGE_TRAITS)
    share = step % _TRAITS / (_TRAITS - 1)

    def has(trait: str) -> torch.Tensor:
        names = [place for place, name in enumerate(_LARGE_TRAITS) if name == trait]
        return torch.isin(turn % len(_LARGE_TRAITS), table_on(device, names))

    far = table_on(device, _FAR)[
        (2 * step + (turn % len(_LARGE_TRAITS) > _LARGE_TRAITS.index("far"))) % len(_FAR)
    ]
    shift = (has("above").float() - has("below").float()) * (150.0 + 150.0 * share)
    shift = torch.where(has("far"), far, shift)
    slope = (has("rising").float() - has("falling").float()) * (120.0 + 30.0 * share)
    spread = torch.where(has("spread"), 32.0, 1.0)
    spread = torch.where(has("far"), _FAR_SPREAD * far.abs(), spread)
    along = torch.linspace(-1.0, 1.0, columns, device=device)
    made = rows * spread[:, None] + shift[:, None] + slope[:, None] * along
    # About a third of the columns, at the end or in between; never all.
    column = torch.arange(columns, device=device)
    masked = torch.where(
        (turn % 2 == 0)[:, None], column % 3 == 1, column >= (2 * columns + 2) // 3
    )
    floor = table_on(device, _floors(made))[step % 2]
    return torch.where(masked & has("masked")[:, None], floor[:, None], made)


def in_float16(values: torch.Tensor) -> torch.Tensor:
    """The values of far rows that float16 does not hold, made smaller."""
    beyond = (values.abs() > _BEYOND_FLOAT16) & (values.abs() < _BEYOND_FAR)
    return torch.where(beyond, values / 32.0, values)


def masked_otherwise(values: torch.Tensor) -> torch.Tensor:
    """The values with each masked column as low as those of other rows are."""
    one, other = _floors(values)
    return torch.where(values == one, other, torch.where(values == other, one, values))


def unmasked(values: torch.Tensor) -> torch.Tensor:
    """The values with zeros in masked columns."""
    one, other = _floors(values)
    return torch.where((values == one) | (values == other), 0.0, values)


def _floors(values: torch.Tensor) -> tuple[float, float]:
    """The numbers of masked columns. The lowest double would overflow where rounding errors are
    estimated."""
    return _MASKED, max(torch.finfo(values.dtype).min, -(2.0**1000))


def near(values: torch.Tensor) -> torch.Tensor:
    """The values without masked columns, and with far rows no farther than others."""
    values = unmasked(values)
    is_far = (values.abs() > NEAR) & values.isfinite()
    return torch.where(is_far, (values * _NEARER).clamp(-_NEAREST, _NEAREST), values)


def _spikes(rows: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rows alternate among one spike, several equal ones, and a spike that is a unit in the last
    place above the spike before it. In every other row it lies in the last sixteenth. The last
    element of a row is half as high."""
    columns, device = rows.shape[1], rows.device
    row = torch.arange(len(rows), device=device)
    heights = table_on(device, _SPIKES)[turn % len(_SPIKES)]
    anywhere = turn * 7919 % columns
    place = torch.where(turn % 2 == 0, columns - 1 - turn * 31 % (columns // 16 + 1), anywhere)
    neighbours = (torch.finfo(rows.dtype).eps, *_NEIGHBOURS)
    trait, part = turn // 2 % 3, turn // 6 % len(neighbours)
    rows = rows * 0.1
    if columns > _SHORT:  # of a long row the last element alone would not show if it were lost
        rows[:, -1] = 0.5 * heights
    rows[row, place] = heights
    after = [(place + step).clamp(max=columns - 1) for step in (1, 37, 1025)]
    for other in after:
        rows[row, other] = torch.where(trait == 1, heights, rows[row, other])
    unit = table_on(device, neighbours)[part]
    higher = torch.exp2(heights.log2().floor()) * (1.0 + unit)
    lower = torch.exp2(heights.log2().floor())
    before = (place - 1 - turn % 3).clamp(min=0)
    is_pair = (trait == 2) & (before < place)
    rows[row, before] = torch.where(is_pair, lower, rows[row, before])
    rows[row, place] = torch.where(is_pair, higher, rows[row, place])
    return rows


def index_values(
    shape: tuple[int, ...],
    values: range,
    kind: str,
    generator: torch.Generator,
    *,
    far: bool = True,
) -> torch.Tensor:
    """int64 integers of a range. normal: any; large: its two ends; ramp: all in order, cyclically;
    spike: one number throughout. With `far`, rows of large alternate among the two ends, numbers
    near one end, and numbers near the other; both ends always occur. Rows of spike alternate
    among the one number, an odd number near one end, and an odd number near the other. So sums are
    large, and sums of all stay within int64, unless the range is all of int64: then sums wrap
    around, as all places do here."""
    device = generator.device
    number = size_of(values)
    if number < _ALL_OF_INT64:
        drawn = torch.randint(number, shape, generator=generator, device=device)
    else:
        drawn = torch.empty(shape, dtype=torch.int64, device=device)
        drawn.random_(-(1 << 63), None, generator=generator)
    count = torch.arange(drawn.numel(), device=device).reshape(shape)
    if kind == "large":
        ends = (drawn + count) % 2 * _wrapped(number - 1)
        drawn = _near_ends(drawn, ends, values, generator) if far and shape else ends
        drawn.view(-1)[0], drawn.view(-1)[-1] = 0, _wrapped(number - 1)
    elif kind == "ramp":
        drawn = count % min(number, (1 << 63) - 1)
    elif kind == "spike":
        one = int(drawn.flatten()[0])
        drawn = torch.full_like(drawn, one)
        drawn = _one_near_ends(drawn, one, values, generator) if far and shape else drawn
    return values.start + drawn * values.step


_ALL_OF_INT64 = 1 << 64


def size_of(values: range) -> int:
    """The number of integers; `len` stops at 2^63."""
    return (values[-1] - values[0]) // values.step + 1


def _wrapped(place: int) -> int:
    """The place as an int64, of which 2^64 is 0."""
    return (place + (1 << 63)) % _ALL_OF_INT64 - (1 << 63)


def _near_ends(
    drawn: torch.Tensor, ends: torch.Tensor, values: range, generator: torch.Generator
) -> torch.Tensor:
    """Numbers near the ends of the range: see `index_values`."""
    first, last = _summed(values, drawn.numel())
    if first > last:
        return ends
    turn = _turns(drawn, generator)
    some = drawn % _near(first, last)
    low, high = _wrapped(first) + some, _wrapped(last) - some
    return torch.where(turn == 0, ends, torch.where(turn == 1, high, low))


def _one_near_ends(
    drawn: torch.Tensor, one: int, values: range, generator: torch.Generator
) -> torch.Tensor:
    """Odd numbers near one end of the range: see `index_values`. Even ones would hide the rounding
    of a floating-point sum."""
    first, last = _summed(values, drawn.numel())
    if first > last:
        return drawn
    some = one % _near(first, last)
    low, high = (
        _wrapped(number if values[number] % 2 else min(max(number + step, first), last))
        for number, step in ((first + some, 1), (last - some, -1))
    )
    turn = _turns(drawn, generator)
    turn = turn.clamp(min=1) if turn.numel() == 1 else turn  # a single row is at an end
    return torch.where(turn == 0, drawn, torch.where(turn == 1, high, low))


def _near(first: int, last: int) -> int:
    """How many numbers are near an end: of the 256 of a byte, 16."""
    return min(_NEAR_AN_END, (last - first) // 16 + 1)


def _summed(values: range, count: int) -> tuple[int, int]:
    """The smallest and the largest value of which `count` can be added within int64. The smallest
    exceeds the largest if there is no such value."""
    most = (1 << 62) // max(1, count)
    places = sorted((end - values.start) // values.step for end in (-most, most))
    return max(0, places[0] + 1), min(size_of(values) - 1, places[1])


def _turns(drawn: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """0, 1 or 2 for each row."""
    turn = torch.randint(3, (1,), generator=generator, device=drawn.device)
    rows = torch.arange(math.prod(drawn.shape[:-1]), device=drawn.device)
    return (turn + rows).reshape(*drawn.shape[:-1], 1) % 3


def spread_values(
    shape: tuple[int, ...], least: float, most: float, generator: torch.Generator
) -> torch.Tensor:
    """Numbers from `least` to `most`, drawn evenly in the logarithm."""
    share = torch.rand(shape, generator=generator, device=generator.device)
    return torch.exp(math.log(least) + share * (math.log(most) - math.log(least)))
