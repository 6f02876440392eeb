"""Which sizes of a kernel were executed: bands of sizes in pairs, and lengths one by one.

A kernel that is wrong for groups of 8 with more than 600 keys is right on groups of 8, and on 900
keys. So a domain is not the box around its cases: each two sizes of a case must have been executed
together, in bands. Within its bands a length may still be the only wrong one, so lengths near timed
cases are executed one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from evotune.problems.problem import Place, was_broadcast
from evotune.trial import ExecutedLengths, Region, Value

NEAR = 0.1
"""The share by which a size may differ from a won case's."""
_EXACT = ("group",)
"""Quantities each of whose values is a band of its own, because a kernel divides rows by them."""
_DERIVED = ("elements", "batch_heads")
"""Quantities that follow from the others."""
_SEQUENCES = "sequences"
"""Packed and paged attention has this size. Its sizes are executed in no planned pairs."""
_MOST_BANDS = 64

Pairs = Mapping[str, Sequence[tuple[int, int]]]
Ranges = Mapping[str, tuple[int | float, int | float]]


def near_ends(values: Iterable[int | float]) -> tuple[int, int]:
    """The least and the greatest size within a tenth of these values or between them."""
    met = list(values)
    return (
        math.ceil(min(met) * (1 - NEAR) - 1e-9),
        math.floor(max(met) * (1 + NEAR) + 1e-9),
    )


def near_ranges(places: Sequence[Place]) -> dict[str, tuple[int | float, int | float]]:
    """For each quantity, the range between the cases' sizes, widened by a tenth; also for the ratio
    of lengths. Ratios of heads are not widened."""
    found: dict[str, tuple[int | float, int | float]] = {}
    for name in places[0].ranged:
        values = [place.ranged[name] for place in places]
        if name in _EXACT:
            found[name] = min(values), max(values)
        elif name == "length_ratio":
            found[name] = min(values) * (1 - NEAR), max(values) * (1 + NEAR)
        elif isinstance(values[0], int) and name not in _DERIVED:
            found[name] = near_ends(values)
    return found


def ranges_between(places: Sequence[Place]) -> dict[str, tuple[int, int]]:
    """For each quantity, the range between the cases' sizes."""
    sizes = [dict(_sizes(place.ranged)) for place in places]
    return {
        name: (min(each[name] for each in sizes), max(each[name] for each in sizes))
        for name in sizes[0]
    }


def band(name: str, value: int) -> int:
    """The band of a size: 0, 1, 2 to 3, 4 to 7 and so on. A ratio is a band of its own."""
    return value if name in _EXACT else value.bit_length()


def band_pairs(places: Iterable[Place]) -> dict[str, tuple[tuple[int, int], ...]]:
    """The executed pairs of bands, by the names of the two quantities."""
    found: dict[str, set[tuple[int, int]]] = {}
    alike = {tuple([(n, band(n, value)) for n, value in _sizes(each.ranged)]) for each in places}
    for bands in alike:  # of thousands of places a few have bands of their own
        for (one, first), (other, second) in itertools.combinations(sorted(bands), 2):
            found.setdefault(f"{one} {other}", set()).add((first, second))
    return {names: tuple(sorted(pairs)) for names, pairs in sorted(found.items())}


def joined_pairs(*all_pairs: Pairs) -> dict[str, tuple[tuple[int, int], ...]]:
    """The union of the pairs of several regions."""
    names = sorted({name for pairs in all_pairs for name in pairs})
    return {
        name: tuple(sorted({tuple(each) for pairs in all_pairs for each in pairs.get(name, ())}))  # type: ignore[misc]
        for name in names
    }


def has_pairs(region: Region, place: Place) -> bool:
    """Whether each two sizes of the case were executed together. True for a region of an older
    store, which has no pairs."""
    if not region.pairs:
        return True
    return all(
        tuple(pair) in {tuple(each) for each in region.pairs.get(names, ())}
        for names, (pair,) in band_pairs([place]).items()
    )


def holds(region: Region, place: Place) -> bool:
    """Whether the case is in the domain's region. An older store does not say how masks were
    broadcast."""
    known = region.mask_sizes and place.mask_sizes
    return (
        place.is_in(region.fixed, region.ranges)
        and has_pairs(region, place)
        and (not known or was_broadcast(region.mask_sizes, place.mask_sizes))
    )


def missing_pairs(pairs: Pairs, ranges: Ranges) -> Iterator[tuple[str, str, int, int]]:
    """The pairs of bands that some case in the ranges has, and that were not executed: two names
    and their bands. Heads are multiples of their group, and lengths keep their ratio."""
    sizes = {name: ends for name, ends in ranges.items() if _is_range(name, ends)}
    for one, other in itertools.combinations(sorted(sizes), 2):
        executed = {tuple(each) for each in pairs.get(f"{one} {other}", ())}
        for first, second in itertools.product(_bands(one, ranges), _bands(other, ranges)):
            if (first, second) in executed:
                continue
            if _may_meet(ranges, one, other, first, second):
                yield one, other, first, second


def band_ends(name: str, number: int) -> tuple[int, int]:
    """The least and the greatest size of a band."""
    if name in _EXACT or number == 0:
        return number, number
    return 1 << (number - 1), (1 << number) - 1


def _sizes(ranged: Mapping[str, int | float]) -> Iterator[tuple[str, int]]:
    for name, value in ranged.items():
        if isinstance(value, int) and name not in _DERIVED:
            yield name, value


def _is_range(name: str, ends: tuple[int | float, int | float]) -> bool:
    return name not in _DERIVED and all(isinstance(end, int) for end in ends)


def _bands(name: str, ranges: Ranges) -> list[int]:
    low, high = (int(end) for end in ranges[name])
    if name in _EXACT:
        return list(range(low, high + 1))[:_MOST_BANDS]
    least, most = ranges.get("group", (1, 1)) if name == "heads" else (1, 1)
    step = int(least) if least == most else 1
    found = range(low.bit_length(), high.bit_length() + 1)
    return [each for each in found if _has_multiple(name, each, low, high, step)]


def _has_multiple(name: str, number: int, low: int, high: int, step: int) -> bool:
    least, most = band_ends(name, number)
    least, most = max(least, low), min(most, high)
    return most // step * step >= least


def _may_meet(ranges: Ranges, one: str, other: str, first: int, second: int) -> bool:
    """Whether some case in the ranges has sizes of these bands, by the ratio of its lengths, by its
    batch * heads, and since heads are a multiple of their group. Names are in order."""
    (low, high), (least, most) = _inside(ranges, one, first), _inside(ranges, other, second)
    if (one, other) == ("seq_len_k", "seq_len_q"):
        smallest, largest = ranges.get("length_ratio", (0.0, math.inf))
        return low / most <= largest and high / max(1, least) >= smallest
    if (one, other) == ("batch", "heads"):
        fewest, greatest = ranges.get("batch_heads", (0, math.inf))
        return low * least <= greatest and high * most >= fewest
    if (one, other) == ("group", "heads"):
        return most // first * first >= least
    return True


def _inside(ranges: Ranges, name: str, number: int) -> tuple[int | float, int | float]:
    """The sizes of the band in the ranges."""
    low, high = band_ends(name, number)
    return max(low, ranges[name][0]), min(high, ranges[name][1])


def tightened(ranges: Ranges) -> dict[str, tuple[int | float, int | float]]:
    """Narrower ranges with the same cases: values that the ratio of the lengths and batch * heads
    exclude are cut off.
    """
    found = dict(ranges)
    queries, keys = found.get("seq_len_q"), found.get("seq_len_k")
    if queries and keys and "length_ratio" in found:
        least, most = found["length_ratio"]
        (low_q, high_q), (low_k, high_k) = queries, keys
        found["seq_len_k"] = max(low_k, _up(low_q * least)), min(high_k, _down(high_q * most))
        found["seq_len_q"] = max(low_q, _up(low_k / most)), min(high_q, _down(high_k / least))
    if "batch_heads" in found:
        greatest = int(found["batch_heads"][1])
        for name, other in (("batch", "heads"), ("heads", "batch")):
            low, high = found[name]
            found[name] = low, max(low, min(high, greatest // max(1, int(ranges[other][0]))))
    return found


def _up(value: float) -> int:
    return math.ceil(value - 1e-9)


def _down(value: float) -> int:
    return math.floor(value + 1e-9)


def executed_within(
    ranges: Ranges, places: Sequence[Place], sizes: Collection[str], region: Region
) -> Ranges | None:
    """The ranges, ended at the last lengths that were executed one by one, and at bands of `sizes`
    that were executed together. None if that leaves out one of the cases, whose `places` lie in the
    ranges."""
    clipped = dict(ranges)
    for place in places:
        for name in sizes & clipped.keys():
            around = executed_around(region, place.ranged, name)
            if around is None:
                return None
            for low, high in around.values():
                if _SEQUENCES in clipped and low > 1:  # its sequences may be of any length
                    return None
                clipped[name] = (max(clipped[name][0], low), min(clipped[name][1], high))
    if region.executed is not None and _SEQUENCES not in clipped:
        _end_at_pairs(clipped, places, region)
        if any(missing_pairs(region.pairs, clipped)):
            return None
    inside = all(place.is_in(region.fixed, clipped) for place in places)
    return clipped if inside else None


def _end_at_pairs(
    ranges: dict[str, tuple[int | float, int | float]], places: Sequence[Place], region: Region
) -> None:
    """Ends ranges at the bands of the cases: first that of the size which most missing pairs have
    beyond these bands, on that side, until no pair is missing or no range is left to end."""
    while missing := list(missing_pairs(region.pairs, ranges)):
        beyond: dict[str, list[int]] = {}
        for one, other, first, second in missing:
            for name, number in ((one, first), (other, second)):
                low, high = _bands_of(name, places)
                if not low <= number <= high:
                    beyond.setdefault(name, []).append(number)
        if not beyond:
            return
        name = max(sorted(beyond), key=lambda name: len(beyond[name]))
        (low, high), (least, most) = _bands_of(name, places), ranges[name]
        if min(beyond[name]) < low:
            least = max(least, band_ends(name, low)[0])
        if max(beyond[name]) > high:
            most = min(most, band_ends(name, high)[1])
        ranges[name] = least, most


def _bands_of(name: str, places: Sequence[Place]) -> tuple[int, int]:
    """The lowest and the highest band of the cases' sizes."""
    bands = [band(name, int(place.ranged[name])) for place in places]
    return min(bands), max(bands)


class LengthPlan(msgspec.Struct, frozen=True):
    """Lengths to execute, so that all those from `low` to `high` count as executed.

    - `fixed`, `alike`: the fixed values and the ratios of sizes that the cases have.
    - `name`: the quantity.
    - `numbers`: the lengths to execute, in rising order.
    - `each`: whether `numbers` has every length from `low` to `high` that the kernel takes.
      Otherwise it has some lengths for each remainder mod the tile sizes; then all of them must be
      executed before the others count.
    """

    fixed: Mapping[str, Value]
    alike: Mapping[str, int]
    name: str
    low: int
    high: int
    numbers: tuple[int, ...]
    each: bool = True

    def holds(self, place: Place) -> bool:
        """Whether the case executes a length of the plan."""
        return place.fixed == self.fixed and all(
            place.ranged.get(name) == value for name, value in self.alike.items()
        )


def executed_lengths(
    plans: Sequence[LengthPlan], places: Sequence[Place]
) -> tuple[ExecutedLengths, ...]:
    """The lengths that were executed, by the cases that passed. Neighbouring ranges are joined."""
    found: dict[tuple[str, tuple[tuple[str, int], ...]], list[tuple[int, int]]] = {}
    for plan in plans:
        done = {int(place.ranged[plan.name]) for place in places if plan.holds(place)}
        key = plan.name, tuple(sorted(plan.alike.items()))
        found.setdefault(key, []).extend(_ranges(plan, done))
    return _lengths(found)


def joined_lengths(*each: Iterable[ExecutedLengths]) -> tuple[ExecutedLengths, ...]:
    """The executed lengths of several regions together."""
    found: dict[tuple[str, tuple[tuple[str, int], ...]], list[tuple[int, int]]] = {}
    for lengths in itertools.chain(*each):
        key = lengths.name, tuple(sorted(lengths.alike.items()))
        found.setdefault(key, []).extend((low, high) for low, high in lengths.ranges)
    return _lengths(found)


def _lengths(
    found: Mapping[tuple[str, tuple[tuple[str, int], ...]], Iterable[tuple[int, int]]],
) -> tuple[ExecutedLengths, ...]:
    return tuple(
        ExecutedLengths(name, dict(alike), tuple(joined_ranges(ranges)))
        for (name, alike), ranges in found.items()
    )


def _ranges(plan: LengthPlan, done: Collection[int]) -> Iterator[tuple[int, int]]:
    """The parts of the plan's range that were executed. A length that the kernel does not take
    belongs to the part of its lower neighbour."""
    if not plan.each:
        if plan.numbers and all(number in done for number in plan.numbers):
            yield plan.low, plan.high
        return
    for place, number in enumerate(plan.numbers):
        if number in done:
            last = place + 1 == len(plan.numbers)
            low = plan.low if place == 0 else number
            yield low, plan.high if last else plan.numbers[place + 1] - 1


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in order; those that touch or overlap are joined."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def executed_around(region: Region, ranged: Mapping[str, int | float], name: str) -> Ranges | None:
    """The range of executed lengths `name` without a gap around a case's length. Empty if the
    region's lengths were not executed one by one, or if `name` is no length; None if the case's own
    length was not executed."""
    known = [
        each
        for each in region.executed or ()
        if each.name == name and all(ranged.get(n) == v for n, v in each.alike.items())
    ]
    if region.executed is None or not any(each.name == name for each in region.executed):
        return {}
    own = ranged[name]
    for each in known:
        for low, high in each.ranges:
            if low <= own <= high:
                return {name: (low, high)}
    return None
