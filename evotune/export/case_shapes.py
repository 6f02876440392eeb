"""The shapes of a problem's tensors as expressions over the symbols of a case."""

from __future__ import annotations

import functools
import itertools
import keyword
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from evotune.errors import ProblemMistake, UsageError
from evotune.portfolios.matrix_store import BATCH_HEADS
from evotune.problems import Tensor, UserProblem
from evotune.problems import attention_masks as masks
from evotune.problems.attention import DIMENSIONS, OPTIONAL, Attention
from evotune.problems.executed_sizes import NEAR, executed_within, near_ends
from evotune.problems.problem import Case, Place, Problem, distinct_broadcasts, was_broadcast
from evotune.problems.ragged_attention import RaggedAttention
from evotune.problems.written import STRUCTURED
from evotune.space.case_scope import CaseScope
from evotune.space.language import parse_expression
from evotune.space.language.nodes import Literal, Name, Node
from evotune.space.reading.yaml_source import Position
from evotune.trial import Json, Region, Value

_STEPS = (1, 2, 3)
_PUBLIC = frozenset(
    {"activate", "active", "attention", "check", "deactivate", "info", "misses"}
    | {"register_transformers", "set_fallback", "write_misses"}
    | {"name"}
)
"""Names that a package has in addition to its function, and those of its `torch.ops` namespace."""
_EXTENTS = (
    "a package reads the sizes from the inputs' shapes, so each extent must be a sum of sizes and "
    "numbers"
)
_ENDS = "a package checks integers, so both ends of their range must be sums of sizes and numbers"
_FLAGS = (
    "a package infers a flag from the inputs of a call, so each input must always be present, "
    "or exactly when one flag is true, and a flag must not change shapes or dtypes"
)
_WORD_BEGINS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])")
Lines = Mapping[str, int]
"""A linear expression for an extent: the factor of each size, and the constant under ""."""
Reader = Callable[[Mapping[str, int]], Mapping[str, tuple[int, ...]]]
"""A function that returns integers for each tensor, given sizes."""


@dataclass(frozen=True, slots=True)
class CaseShapes:
    """How a package derives a case from the shapes of a call's inputs.

    - tensors: the extents of each tensor, inputs first.
    - sizes: the names of the sizes to solve for; empty for attention, which the package knows.
    - strides: the symbols of a tensor's strides, for tensors that may have any.
    - dtypes: the type of each tensor's elements.
    - ends: the least and the largest value that an input of integers may have.
    - spread: the least and the largest value of numbers that the problem draws between two ends.
    - optional: for a tensor that a case may lack, the symbol that says whether the case has it.
    - ragged: whether the problem is attention over sequences of different lengths.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: tuple[str, ...]
    tensors: Mapping[str, tuple[Lines, ...]]
    strides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, tuple[Lines, ...]] = field(default_factory=dict)
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    ragged: bool = False

    @property
    def has_features(self) -> bool:
        """Whether some case of attention has features, or a separate size of values."""
        return bool(self.optional) and {"value_dim": 1} in self.tensors.get("v", ())

    def nodes(self, scope: CaseScope) -> dict[str, tuple[Node, ...]]:
        """The extents of each tensor as expressions."""
        return {
            name: tuple(_node(scope, line) for line in extents)
            for name, extents in self.tensors.items()
        }

    def values(self, scope: CaseScope) -> dict[str, tuple[Node, ...]]:
        """The least and the largest value of each input that has such limits, as expressions."""
        found = {
            name: tuple(_node(scope, line) for line in ends) for name, ends in self.ends.items()
        }
        return found | {name: tuple(map(scope.literal, ends)) for name, ends in self.spread.items()}

    def quantities(self, scope: CaseScope) -> dict[str, Node]:
        """The quantities of regions that are not symbols: the elements of the largest tensor, and
        for attention the number of heads that share keys and the ratio of the lengths."""
        if self.ragged:
            grouped = scope.operation("//", scope.symbol("heads"), scope.symbol("kv_heads"))
            return {"group": grouped}
        elements = [self._span(scope, name, nodes) for name, nodes in self.nodes(scope).items()]
        found = {"elements": scope.operation("max", *dict.fromkeys(elements))}
        if not self.sizes:
            symbol = scope.symbol
            found["group"] = scope.operation("//", symbol("heads"), symbol("kv_heads"))
            found[BATCH_HEADS] = scope.operation("*", symbol("batch"), symbol("heads"))
            found["length_ratio"] = scope.operation("/", symbol("seq_len_k"), symbol("seq_len_q"))
        return found

    def _span(self, scope: CaseScope, name: str, extents: Sequence[Node]) -> Node:
        """The elements of memory from a tensor's first element to its last, as `TensorSpec.span`
        counts them."""
        one = scope.literal(1)
        symbols = self.strides.get(name)
        if not symbols:
            product: Node = one
            for extent in extents:
                product = extent if product == one else scope.operation("*", product, extent)
            return product
        span: Node = extents[-1]  # the last dimension is contiguous
        for extent, symbol in zip(extents, symbols, strict=False):
            steps = scope.operation("-", extent, one)
            step = scope.operation("*", steps, scope.symbol(symbol))
            span = scope.operation("+", span, step)
        return span


def case_shapes(problem: Problem, cases: Sequence[Case]) -> CaseShapes:
    """Writes the shapes of a problem as sums of sizes. Raises UsageError if that is impossible, or
    if a package cannot describe the problem's calls. The shapes are compared on all of `cases`.
    """
    specs = problem.tensors(cases[0])
    if why := _beyond_packages(problem, cases):
        name = type(problem).__name__ if isinstance(problem, UserProblem) else problem.name
        raise UsageError(f"problem {name} cannot be exported: a package takes no {why}")
    inputs = tuple(spec.name for spec in specs if not spec.is_output)
    outputs = tuple(spec.name for spec in specs if spec.is_output)
    dtypes = {spec.name: spec.dtype for spec in specs}
    if isinstance(problem, Attention):
        return _attention_shapes(problem, cases)
    if isinstance(problem, RaggedAttention):
        return CaseShapes(inputs, outputs, (), problem.extents, dtypes=dtypes, ragged=True)
    if not isinstance(problem, UserProblem):
        raise UsageError(
            f"problem {problem.name} cannot be exported: a package understands the calls of "
            "attention, dense, packed or paged, and of classes derived from evotune.Problem"
        )
    named = _described(problem, cases[0])
    specs = tuple({spec.name: spec for case in cases for spec in problem.tensors(case)}.values())
    extents, ends = functools.partial(_extents, problem), functools.partial(_ends, problem)
    found = CaseShapes(
        *(tuple(named), outputs, tuple(problem.sizes)),
        tensors=_probed(problem, cases[0], extents, _EXTENTS),
        dtypes={spec.name: spec.dtype for spec in specs},
        ends=_probed(problem, cases[0], ends, _ENDS),
        spread=_spread(problem, cases[0]),
        optional=_optional(problem, cases[0]),
    )
    for case in cases:
        sizes = {size: int(case.symbols[size]) for size in problem.sizes}
        _require_lines(problem, found.tensors, sizes, extents, _EXTENTS)
        _require_lines(problem, found.ends, sizes, ends, _ENDS)
        if any(spec.dtype != found.dtypes[spec.name] for spec in problem.tensors(case)):
            raise _refused(problem, "a package takes no tensors whose type depends on the sizes")
        if _spread(problem, case) != found.spread:
            raise _refused(problem, _ENDS)
    return found


def _attention_shapes(problem: Attention, cases: Sequence[Case]) -> CaseShapes:
    """The shapes of attention. A package without features has no symbol for the size of values,
    which is that of heads. The type of a mask depends on its kind, so it is in no list."""
    specs = {spec.name: spec for case in cases for spec in problem.tensors(case)}
    own = {"value_dim": "head_dim"} if all(map(problem.is_plain, cases)) else {}
    sizes = {**DIMENSIONS, **{name: sizes for name, (_, sizes) in OPTIONAL.items()}}
    sizes[masks.TENSOR] = (*masks.SIZES, "seq_len_k")
    return CaseShapes(
        inputs=tuple(name for name, spec in specs.items() if not spec.is_output),
        outputs=tuple(name for name, spec in specs.items() if spec.is_output),
        sizes=(),
        tensors={name: tuple({own.get(s, s): 1} for s in sizes[name]) for name in specs},
        strides={name: spec.stride_symbols for name, spec in specs.items() if spec.stride_symbols},
        optional={
            **{name: feature for name, (feature, _) in OPTIONAL.items()},
            masks.TENSOR: "has_mask",
        },
        dtypes={name: spec.dtype for name, spec in specs.items() if name != masks.TENSOR},
    )


def _beyond_packages(problem: Problem, cases: Sequence[Case]) -> str:
    """The first thing about the problem's tensors that packages do not understand; "" for none."""
    if not isinstance(problem, UserProblem):
        return ""
    described = [each for case in cases for each in _described(problem, case).values()]
    ranges = [each.values for each in described if isinstance(each.values, range)]
    specs = [spec for case in cases for spec in problem.tensors(case)]
    outputs = {spec.name for spec in specs if spec.is_output}
    found = {
        'tensors of "indices", whose values must fit together': any(
            each.has_indices for each in described
        ),
        'tensors of "structured" values': any(each.values == STRUCTURED for each in described),
        "integers of a range with steps": any(each.step != 1 for each in ranges),
        "complex numbers": any(spec.dtype == "complex64" for spec in specs),
        "problem with `same`, whose answers it could not check": problem.has_same,
        "tensors that are updated in place": any(spec.is_updated for spec in specs),
        "outputs that may be left out": bool(outputs & set(problem.optional)),
    }
    return next((words for words, holds in found.items() if holds), "")


def call_name(name: str, problem: Problem) -> str:
    """The name of the package's function: `attention`, or the class's name with underscores between
    its words. `name`: the problem as the space names it."""
    if not isinstance(problem, UserProblem):
        return problem.name
    written = name.rpartition(":")[2] if problem.name == UserProblem.name else problem.name
    found = _WORD_BEGINS.sub("_", written).lower().strip("_")  # a package's own names begin with _
    taken = found in _PUBLIC or not found.isidentifier() or keyword.iskeyword(found)
    return f"{found}_kernel" if taken else found


def calls(problem: Problem, shapes: CaseShapes, tuned: Sequence[Case]) -> Json:
    """The entry `cases_from` of a package: how it makes a case of the tensors of a call."""
    if not isinstance(problem, UserProblem):
        return {problem.name: {}}
    return {
        "sizes": list(shapes.sizes),
        "constants": dict(problem.constants),
        "ranges": {name: [ends[0], ends[-1]] for name, ends in problem.ranges.items()},
        "variants": {},
        **({"flags": _flags(problem, shapes)} if problem.flags else {}),
        "tuned": [_plain(case.symbols) for case in tuned],
    }


def _plain(symbols: Mapping[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in symbols.items() if name != "dtype"}


def _flags(problem: UserProblem, shapes: CaseShapes) -> dict[str, Json]:
    """For each flag the tensors whose presence it implies."""
    return {
        flag: [name for name, each in shapes.optional.items() if each == flag]
        for flag in problem.flags
    }


def _choices(problem: UserProblem) -> list[dict[str, bool]]:
    """Every choice of the problem's flags, all true first."""
    every = itertools.product((True, False), repeat=len(problem.flags))
    return [dict(zip(problem.flags, each, strict=True)) for each in every]


def _described(problem: UserProblem, case: Case) -> Mapping[str, Tensor]:
    """The inputs, as the problem describes them, those of any flags."""
    sizes = {size: int(case.symbols[size]) for size in problem.sizes}
    return _inputs(problem, sizes)


def _inputs(problem: UserProblem, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Raises UsageError if flags change more than the presence of an input."""
    found: dict[str, Tensor] = {}
    for flags in _choices(problem):
        for name, each in problem.written.described("inputs", {**sizes, **flags}).items():
            if found.setdefault(name, each) != each:
                raise _refused(problem, _FLAGS)
    return found


def _optional(problem: UserProblem, case: Case) -> dict[str, str]:
    """For each input that some cases lack, the flag that implies its presence."""
    sizes = {size: int(case.symbols[size]) for size in problem.sizes}
    present = [
        (flags, problem.written.described("inputs", {**sizes, **flags}).keys())
        for flags in _choices(problem)
    ]
    found = {}
    for name in _inputs(problem, sizes):
        if all(name in names for _, names in present):
            continue
        deciding = [
            flag
            for flag in problem.flags
            if all(flags[flag] == (name in n) for flags, n in present)
        ]
        if not deciding:
            raise _refused(problem, _FLAGS)
        found[name] = deciding[0]
    return found


def _probed(
    problem: UserProblem, case: Case, read: Reader, why: str
) -> dict[str, tuple[Lines, ...]]:
    """Steps each size by itself. Returns the sums of sizes that give the numbers of `read`."""
    start = {size: int(case.symbols[size]) for size in problem.sizes}
    base = read(start)
    lines: dict[str, tuple[dict[str, int], ...]] = {
        name: tuple({"": extent} for extent in shape) for name, shape in base.items()
    }
    for size in problem.sizes:
        stepped = read({**start, size: start[size] + _STEPS[0]})
        for name, shape in base.items():
            after = stepped.get(name, ())
            if len(after) != len(shape):
                raise _refused(problem, why)
            for line, extent, before in zip(lines[name], after, shape, strict=True):
                if factor := extent - before:
                    line[size] = factor
                    line[""] -= factor * start[size]
    for size in problem.sizes:
        for step in _STEPS[1:]:
            _require_lines(problem, lines, {**start, size: start[size] + step}, read, why)
    return dict(lines)


def _extents(problem: UserProblem, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    try:
        found = {name: each.shape for name, each in _inputs(problem, sizes).items()}
        for flags in _choices(problem):
            for name, shape in problem.written.shapes("outputs", {**sizes, **flags}).items():
                if found.setdefault(name, shape) != shape:
                    raise _refused(problem, _FLAGS)
    except ProblemMistake as mistake:
        raise _refused(problem, _EXTENTS) from mistake
    return found


def _ends(problem: UserProblem, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The least and the largest integer of each input that has a range of them."""
    try:
        found = _inputs(problem, sizes)
    except ProblemMistake as mistake:
        raise _refused(problem, _ENDS) from mistake
    return {
        name: (each.values[0], each.values[-1])
        for name, each in found.items()
        if isinstance(each.values, range) and each.dtype != "bool"
    }


def _spread(problem: UserProblem, case: Case) -> dict[str, tuple[float, float]]:
    return {
        name: each.values
        for name, each in _described(problem, case).items()
        if isinstance(each.values, tuple)
    }


def _require_lines(
    problem: UserProblem,
    lines: Mapping[str, Iterable[Lines]],
    sizes: Mapping[str, int],
    read: Reader,
    why: str,
) -> None:
    found = {
        name: tuple(
            sum(factor * sizes[size] if size else factor for size, factor in line.items())
            for line in extents
        )
        for name, extents in lines.items()
    }
    if found != read(sizes):
        raise _refused(problem, why)


def _refused(problem: UserProblem, why: str) -> UsageError:
    return UsageError(f"problem {type(problem).__name__} cannot be exported: {why}")


def _node(scope: CaseScope, line: Lines) -> Node:
    """The sum, without a constant of 0 and factors of 1."""
    found: Node | None = None
    for size, factor in line.items():
        if size == "":
            continue
        symbol = scope.symbol(size)
        term = symbol if factor == 1 else scope.operation("*", scope.literal(factor), symbol)
        found = term if found is None else scope.operation("+", found, term)
    constant = line.get("", 0)
    if found is None:
        return scope.literal(constant)
    return scope.operation("+", found, scope.literal(constant)) if constant else found


def to_json(node: Node) -> Json:
    """The tree as JSON, the form in which an exported package stores expressions over the case.

    The JSON is not nested deeper than the text of one expression.

    - number, true, false, "text": a literal
    - {"name": "seq_len_q"}: a symbol of the case, or a `let`
    - ["+", operand, operand]: an operation of `evotune.space.language.nodes`
    """
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Name):
        return {"name": node.name}
    return [node.operator, *map(to_json, node.operands)]


# Which cases a package serves with which kernel: the regions around measured cases that won.
#
# A case that was timed, or held out and timed, is won where the whole interval of its speedup lies
# above 1, and the kernel gains more time than a call of the package costs. Between won cases, and
# within a tenth of one, the kernel is expected to win too. A case that was measured and not won is
# never inside.
WON = 1.0
ELEMENTS = "elements"

Ranges = Mapping[str, tuple[int | float, int | float]]


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """A case with a champion's speedup on it.

    - sizes: the names of the case's quantities that are sizes, not a ratio of sizes or a constant.
    - gain_us: the least time that a call gains, after the package's own cost.
    """

    label: str
    place: Place
    sizes: frozenset[str]
    speedup_low: float
    held_out: bool = False
    gain_us: float = 0.0

    @property
    def won(self) -> bool:
        return self.speedup_low >= WON and self.gain_us >= 0.0


@dataclass(frozen=True, slots=True)
class ServedRegion:
    """A region of cases for one kernel. `near` regions were measured at some of their cases
    only. `mask_sizes`: the ways in which a mask may be broadcast; see `executed_masks`."""

    kernel: int
    fixed: Mapping[str, Value]
    ranges: Ranges
    speedup_low: float
    near: bool
    mask_sizes: tuple[str, ...] = ()

    def to_json(self, layout: str) -> dict[str, Json]:
        return {
            **({"mask_sizes": list(self.mask_sizes)} if self.mask_sizes else {}),
            "kernel": self.kernel,
            "fixed": dict(self.fixed),
            "ranges": {name: list(ends) for name, ends in self.ranges.items()},
            "speedup_low": self.speedup_low,
            "near": self.near,
            "layout": layout,
        }


def exact_regions(
    kernel: int, measured: Sequence[MeasuredCase], domain: Sequence[Region] = ()
) -> Iterator[ServedRegion]:
    """A region of one case for each won timed case."""
    lost = [case.place for case in measured if not case.won]
    for case in measured:
        if case.won and not case.held_out:
            fixed = case.place.fixed
            point = {name: (value, value) for name, value in case.place.ranged.items()}
            sizes = executed_masks(fixed, point, [case.place], lost, domain)
            yield ServedRegion(kernel, fixed, point, case.speedup_low, near=False, mask_sizes=sizes)


def executed_masks(
    fixed: Mapping[str, Value],
    ranges: Ranges,
    won: Iterable[Place],
    lost: Iterable[Place],
    domain: Iterable[Region],
) -> tuple[str, ...]:
    """How a mask may be broadcast in a region (`Place.mask_sizes`): as in the `won` cases, which
    come first, or in another way that a check executed, but not as in a `lost` case of the
    region. Empty for cases without a mask."""
    refused = {each.mask_sizes for each in lost if each.is_in(fixed, ranges)}
    own = list(dict.fromkeys(each.mask_sizes for each in won if each.mask_sizes))
    executed = distinct_broadcasts(s for r in domain if r.fixed == fixed for s in r.mask_sizes)
    others = (each for each in executed if not any(was_broadcast([each], s) for s in refused))
    return tuple(dict.fromkeys([*own, *others]))


def near_regions(
    kernel: int, measured: Sequence[MeasuredCase], domain: Sequence[Region]
) -> Iterator[ServedRegion]:
    """The regions around the won cases, inside the domain. Won cases are joined, nearest first, as
    long as the region contains no case that was measured and not won."""
    for region in domain:
        inside = [case for case in measured if case.place.is_in(region.fixed, region.ranges)]
        lost = [case.place for case in inside if not case.won]
        for group in _alike([case for case in inside if case.won]):
            for members in _grouped(group, lost, region):
                ranges = _around(members, region)
                if ranges is not None and not _any_inside(region.fixed, ranges, lost):
                    low = min(case.speedup_low for case in members)
                    places = [case.place for case in members]
                    sizes = executed_masks(region.fixed, ranges, places, (), [region])
                    yield ServedRegion(kernel, region.fixed, ranges, low, True, sizes)


def in_order(regions: Iterable[ServedRegion]) -> list[ServedRegion]:
    """The order in which a package searches its regions: exact regions first, then the greatest
    speedup first.
    """
    return sorted(
        regions,
        key=lambda region: (
            region.near,
            -region.speedup_low,
            region.kernel,
            repr((sorted(region.fixed.items()), sorted(region.ranges.items()))),
        ),
    )


def _alike(cases: Sequence[MeasuredCase]) -> Iterator[list[MeasuredCase]]:
    """The cases in groups with the same ratios of sizes."""
    groups: dict[tuple[tuple[str, int | float], ...], list[MeasuredCase]] = {}
    for case in cases:
        ratios = tuple(
            (name, value)
            for name, value in sorted(case.place.ranged.items())
            if isinstance(value, int) and name not in case.sizes and name != ELEMENTS
        )
        groups.setdefault(ratios, []).append(case)
    yield from groups.values()


def _grouped(
    cases: Sequence[MeasuredCase], lost: Sequence[Place], region: Region
) -> list[list[MeasuredCase]]:
    """The cases joined into groups, the nearest two groups first, while a joined region holds no
    lost case."""
    groups = [[case] for case in sorted(cases, key=lambda case: case.label)]
    while True:
        joined = [
            (_distance(a, b), i, j)
            for i, a in enumerate(groups)
            for j, b in enumerate(groups[:i])
            if _may_join([*a, *b], lost, region)
        ]
        if not joined:
            return groups
        _, i, j = min(joined)
        groups[j] += groups.pop(i)


def _may_join(cases: Sequence[MeasuredCase], lost: Sequence[Place], region: Region) -> bool:
    ranges = _around(cases, region)
    return ranges is not None and not _any_inside(region.fixed, ranges, lost)


def _distance(some: Sequence[MeasuredCase], others: Sequence[MeasuredCase]) -> float:
    """The sum over sizes of the ratio, in ln, between the nearest cases. A window may be 0."""

    def size(case: MeasuredCase, name: str) -> float:
        return max(case.place.ranged[name], 1)

    return min(
        sum(abs(math.log(size(a, name) / size(b, name))) for name in a.sizes)
        for a in some
        for b in others
    )


def _around(cases: Sequence[MeasuredCase], region: Region) -> Ranges | None:
    """The sizes between the cases' and a tenth around them, clipped to the region; ratios as in the
    cases, and all constants of the region. A quantity that the region lacks is a ratio of sizes
    that may change by a tenth as well. None if nothing is left, or when sizes between the cases
    were not executed."""
    sizes = cases[0].sizes
    found: dict[str, tuple[int | float, int | float]] = {}
    for name, (low, high) in region.ranges.items():
        values = [case.place.ranged[name] for case in cases]
        if name in sizes:
            least, most = near_ends(values)
            found[name] = (max(low, least), min(high, most))
        elif isinstance(values[0], int) and name != ELEMENTS:
            found[name] = (values[0], values[0])
        else:
            found[name] = (low, high)
    for name in cases[0].place.ranged.keys() - region.ranges.keys():
        ratios = [case.place.ranged[name] for case in cases]
        found[name] = (min(ratios) * (1 - NEAR), max(ratios) * (1 + NEAR))
    if any(low > high for low, high in found.values()):
        return None
    return executed_within(found, [case.place for case in cases], sizes, region)


def _any_inside(fixed: Mapping[str, Value], ranges: Ranges, places: Iterable[Place]) -> bool:
    return any(place.is_in(fixed, ranges) for place in places)


# Completes the regions of attention: in a package a region also fixes the features not in use.
#
# The domain of a run names only the features that its cases use. A package may hold kernels of
# several runs, and a kernel serves only calls with exactly the features that it was checked for. So
# a package's region gives each unused feature the value that means none.
NONE: Mapping[str, Value] = {
    "given": "",
    "bottom_right": False,
    "alibi": False,
    "score_mod": "",
    "sinks": False,
    "lse": False,
    "mask": masks.NONE,
    "mask_dtype": masks.NONE,
}
"""The features that a region fixes, with the values that mean no feature. `given` names the
features that are numbers, for which regions have ranges: a window's ends and the soft cap."""

Fixed = Mapping[str, Value]


def completing(shapes: CaseShapes) -> Callable[[Fixed], dict[str, Value]]:
    """A function that completes the fixed values of a region: each feature that its cases do not
    use gets its value in `NONE`, and `value_dim` is `head_dim` unless it is fixed.

    The function adds nothing if no case of the package has features, and for other problems.
    """
    if not shapes.has_features:
        return dict
    return lambda fixed: {**NONE, "value_dim": fixed["head_dim"], **fixed}


def score_mods(fixed: Iterable[Fixed]) -> dict[str, Json]:
    """The score modifications that regions name, each with its tree."""
    texts = dict.fromkeys(str(each["score_mod"]) for each in fixed if each.get("score_mod"))
    return {text: to_json(parse_expression(text, Position()).node) for text in texts}
