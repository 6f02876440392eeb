"""The features of attention other than scale, mask and layout, as symbols of a case.

    alignment      top_left (row i's own key is i, as in SDPA) or bottom_right (i + seq_len_k -
                   seq_len_q, as chunks of a prefill and speculated tokens need it). Causal masks,
                   windows and ALiBi count from there.
    window_left    a row sees at most so many keys before its own one; not given: all of them
    window_right   the same for later keys; a causal mask hides all later keys
    softcap        scores become softcap * tanh(score / softcap), after the scale, before all else
    alibi          scores become score - alibi_slopes[head] * |own key - key|
    score_mod      an expression over score, head, row and column replaces the score: `macro`
    sinks          a logit for each head, `sinks`, that joins a row's sum of exponentials alone
    lse            a second output: the logarithm of that sum, the sink included, in float32
    mask           SDPA's `attn_mask`: boolean or added to the scores, see `attention_masks`

A row that sees no key is 0, and its sum is that of the sink, or nothing: its logarithm is -inf.
`attention_scores` computes all this with torch.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from evotune.errors import SpaceError
from evotune.problems import attention_masks as masks
from evotune.problems.attention_masks import Mask
from evotune.problems.pair_cover import other_scalar
from evotune.problems.problem import Case, WrongSymbol
from evotune.space.language import parse_expression
from evotune.space.language.nodes import Literal, Name, Node, Operation, names_in
from evotune.space.reading.yaml_source import Position
from evotune.trial import Value

KEYS = (
    *("alignment", "window_left", "window_right", "softcap", "alibi", "score_mod", "sinks", "lse"),
    *masks.KEYS,
)
"""The names that a shape or a variant may give."""
ALIGNMENTS = ("top_left", "bottom_right")
_MOST_WINDOW = 1 << 30
_OTHER_CAPS = (3.0, 1.5)
_MOST_EDGE_SCORES = 1 << 22


def unsaid_alignment(told: Mapping[str, Value], case: Case) -> str:
    """A line of advice if a causal case has fewer queries than keys and `told` lacks the alignment,
    else "". Users of SDPA and of FlashAttention expect different alignments there."""
    late = int(case.symbols["seq_len_k"]) - int(case.symbols["seq_len_q"])
    if "alignment" in told or not case.symbols["causal"] or late <= 0:
        return ""
    return (
        f"{case.label}: the last key of query i is key i, as with SDPA's is_causal; "
        f"for i + {late}, as chunked prefill and speculation need it, say "
        f"alignment: {ALIGNMENTS[1]}, else alignment: {ALIGNMENTS[0]}"
    )


@dataclass(frozen=True, slots=True)
class Features:
    """The features of a case. A window of -1 is unlimited; a softcap of 0 means none."""

    bottom_right: bool = False
    window_left: int = -1
    window_right: int = -1
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    lse: bool = False
    score_mod: str = ""
    mask: Mask = masks.NO_MASK

    @classmethod
    def given(
        cls, told: Mapping[str, Value], *, causal: bool, sizes: Mapping[str, int], dtype: str
    ) -> Features:
        """`told`: the values of some of `KEYS`. `sizes`, `dtype`: the case's. Raises WrongSymbol
        for the first invalid one."""
        alignment = told.get("alignment", ALIGNMENTS[0])
        if alignment not in ALIGNMENTS:
            known = " or ".join(ALIGNMENTS)
            raise WrongSymbol(f"expected alignment to be {known}, got {alignment!r}", "alignment")
        windows = {name: told.get(name, -1) for name in ("window_left", "window_right")}
        for name, size in windows.items():
            if name not in told:
                continue
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _MOST_WINDOW:
                message = f"expected {name} to be an integer of at least 0, got {size!r}"
                raise WrongSymbol(message, name)
            if causal and name == "window_right":
                raise WrongSymbol(
                    "a causal mask hides all keys that window_right names: leave window_right out",
                    name,
                )
        cap = told.get("softcap", 0.0)
        if "softcap" in told and (isinstance(cap, bool | str) or not 0.0 < cap < math.inf):
            raise WrongSymbol(f"expected softcap to be a positive number, got {cap!r}", "softcap")
        flags: dict[str, Any] = {}
        for name in ("alibi", "sinks", "lse"):
            flags[name] = told.get(name, False)
            if not isinstance(flags[name], bool):
                raise WrongSymbol(f"expected {name} to be true or false, got {told[name]!r}", name)
        if "score_mod" in told:
            parsed(str(told["score_mod"]))
            flags["score_mod"] = " ".join(str(told["score_mod"]).split())
        flags |= {name: int(size) for name, size in windows.items()}
        flags["mask"] = Mask.given(told, sizes, dtype)
        return cls(alignment == ALIGNMENTS[1], softcap=float(cap), **flags)

    @classmethod
    def of(cls, case: Case) -> Features:
        own: dict[str, Any] = {n: case.symbols[n] for n in cls.__dataclass_fields__ if n != "mask"}
        return cls(**own, mask=Mask.of(case.symbols))

    def symbols(self) -> dict[str, Value]:
        """All names by which kernels and expressions know the features."""
        return {
            "bottom_right": self.bottom_right,
            "window_left": self.window_left,
            "window_right": self.window_right,
            "has_window": self.has_window,
            "softcap": self.softcap,
            "has_softcap": self.softcap > 0.0,
            "alibi": self.alibi,
            "sinks": self.sinks,
            "lse": self.lse,
            "score_mod": self.score_mod,
            **self.mask.symbols(),
        }

    @property
    def has_window(self) -> bool:
        return self.window_left >= 0 or self.window_right >= 0

    @property
    def any(self) -> bool:
        return self != Features()

    def told(self) -> dict[str, Value]:
        """The features that are in use, as a shape would give them."""
        found: dict[str, Value] = {}
        if self.bottom_right:
            found["alignment"] = ALIGNMENTS[1]
        for name in ("window_left", "window_right"):
            if getattr(self, name) >= 0:
                found[name] = getattr(self, name)
        if self.softcap:
            found["softcap"] = self.softcap
        if self.score_mod:
            found["score_mod"] = self.score_mod
        found |= {name: True for name in ("alibi", "sinks", "lse") if getattr(self, name)}
        return found | self.mask.told()

    def words(self) -> str:
        """For a label: "" without features."""
        told = self.told()
        numbers = ("window_left", "window_right", "softcap", "score_mod")
        names = {"window_left": "left", "window_right": "right"}
        return (
            "".join(
                f",{names.get(name, name)}={value}" if name in numbers else f",{name}"
                for name, value in told.items()
                if name != "alignment" and name not in masks.KEYS
            )
            + self.mask.words()
        )

    def formulas(self) -> dict[str, tuple[str, str]]:
        """`score_mod` as a macro. The macro is empty if the case has no score modification."""
        return {"score_mod": (MACRO, macro(self.score_mod) if self.score_mod else "")}

    def known_by(self) -> dict[str, frozenset[str]]:
        """The features that are in use, by the names that a user gives, each with the names of
        symbols and tensors by which a kernel may know it."""
        others = {"alignment": {"bottom_right"}, "alibi": {"alibi", "alibi_slopes"}}
        others["mask"] = {masks.TENSOR}
        return {
            name: frozenset(others.get(name, {name}))
            for name in self.told()
            if name not in masks.KEYS[1:]
        }

    def scalars(self) -> tuple[str, ...]:
        """The features that are numbers; tests may use other values."""
        told = self.told()
        return tuple(n for n in ("window_left", "window_right", "softcap") if n in told)

    def kept(self) -> dict[str, Value]:
        """The features that every test of a case has, as symbols of its domain. `given` names the
        numbers, for which a domain has ranges."""
        used: dict[str, Value] = {
            name: getattr(self, name)
            for name in ("bottom_right", "alibi", "score_mod", "sinks", "lse")
            if getattr(self, name)
        }
        used |= self.mask.kept()
        return used | ({"given": ", ".join(self.scalars())} if self.scalars() else {})


def sees(features: Features, *, causal: bool, queries: int, keys: int) -> tuple[Any, Any]:
    """The first and the last key that each row sees, as two arrays of int64. A row that sees none
    has a last key before its first one."""
    own = np.arange(queries, dtype=np.int64)
    if features.bottom_right:
        own += keys - queries
    first, last = np.zeros_like(own), np.full_like(own, keys - 1)
    if features.window_left >= 0:
        first = np.maximum(first, own - features.window_left)
    right = 0 if causal else features.window_right
    if right >= 0:
        last = np.minimum(last, own + right)
    return first, last


def visible(features: Features, *, causal: bool, queries: int, keys: int) -> int:
    """The number of scores that are not hidden, of one head."""
    first, last = sees(features, causal=causal, queries=queries, keys=keys)
    return int(np.maximum(last - first + 1, 0).sum())


def keys_read(features: Features, *, causal: bool, queries: int, keys: int) -> int:
    """The number of keys that some row sees, of one head."""
    first, last = sees(features, causal=causal, queries=queries, keys=keys)
    any_seen = last >= first
    if not any_seen.any():
        return 0
    return int(last[any_seen].max() - first[any_seen].min() + 1)


def hides_late_keys(case: Case) -> bool:
    """Whether many keys are of use only with as many rows, since row 0 sees few."""
    features = Features.of(case)
    causal = bool(case.symbols["causal"])
    return not features.bottom_right and (causal or features.window_right >= 0)


def edge_shapes(features: Features, kept: Collection[str]) -> Iterator[dict[str, Value]]:
    """Further small shapes at the borders of the features in use. `kept` are symbols that no shape
    may change."""
    windows = [name for name in features.scalars() if name.startswith("window")]
    free = [name for name in windows if name not in kept]

    def shape(queries: int, keys: int, *sizes: int, heads: int = 2) -> dict[str, Value]:
        found: dict[str, Value] = {"batch": 1, "heads": heads, "kv_heads": heads}
        found |= {"seq_len_q": queries, "seq_len_k": keys}
        return found | dict(zip(windows, sizes, strict=False))

    if windows and len(free) == len(windows):
        yield shape(67, 67, 0, 0, heads=4)
        yield shape(70, 131, 5, 3, heads=3)
        yield shape(131, 70, 16, 17)
        yield shape(40, 40, 1000, 999)
        yield shape(200, 200, 63, 64)
    elif windows:
        own = max(int(getattr(features, name)) for name in windows)
        for queries, keys in ((own + 1, own + 1), (own + 3, own + 2), (2 * own + 67, own + 35)):
            if queries * keys <= _MOST_EDGE_SCORES:
                yield {**shape(queries, keys, heads=1)}
    if features.softcap and "softcap" not in kept:
        near = abs(math.log(_OTHER_CAPS[0] / features.softcap)) < 0.3
        yield {**shape(65, 65), **features_of_windows(features), "softcap": _OTHER_CAPS[near]}
    if features.bottom_right:
        yield {**shape(50, 33, heads=3), **features_of_windows(features)}  # 17 rows see no key
    for found in features.mask.edge_shapes(kept):
        yield {**found, **features_of_windows(features)}


def features_of_windows(features: Features) -> dict[str, Value]:
    told = features.told()
    return {name: told[name] for name in ("window_left", "window_right") if name in told}


def drawn(
    rng: random.Random, features: Features, kept: Collection[str], longest: int
) -> dict[str, Value]:
    """Other numbers for a random test whose longest length is `longest`."""
    found: dict[str, Value] = {}
    for name in features.scalars():
        if name in kept or rng.random() < 0.3:
            continue
        if name == "softcap":
            found[name] = other_scalar(rng, features.softcap)
        else:
            near = max(0, longest + rng.randint(-2, 2))
            found[name] = rng.choice((0, 1, rng.randint(2, 70), rng.randint(0, longest), near))
    return found | features.mask.drawn(rng, kept)


def changed(features: Features, told: Mapping[str, Value], kept: Collection[str]) -> Features:
    """The features with other numbers, except the numbers that are to be kept, and with a mask that
    is broadcast in another way."""
    numbers: dict[str, Any] = {
        name: told[name] for name in features.scalars() if name in told and name not in kept
    }
    return replace(features, **numbers, mask=features.mask.changed(told))


NAMES = ("score", "head", "row", "column")
MACRO = f"SCORE_MOD({', '.join(NAMES)})"
_KEY = "score_mod"
_ARITHMETIC = ("+", "-", "*")
_COMPARE = ("<", "<=", ">", ">=", "==", "!=")
_LOGIC = {"and": " && ", "or": " || "}
_MOST = 1 << 31
_LENGTHS = 1 << 24  # a head, row or column is assumed to be below this
_SMALL = 0.125
"""Up to this factor a kernel may round the parts of factor * (row - column) apart, which adds an
error below 2^-19. It may not where a comparison, a quotient or a larger factor makes more of it."""
_LONGEST = 100_000  # characters of the text in C++, which repeats operands of min, max and abs


class Text(NamedTuple):
    """C++ text, and its type: int, float or bool. `most`: the largest magnitude of an int. If that
    needs 64 bits, the text is a long long, because PyTorch's integers have 64 bits too. `in_float`:
    the text of an int as a float, if that is cheaper than converting it.

    A kernel may have an object in the place of an int that C++ converts to one. A unary + does so
    in the text, and a product with 1.0f asks for a float (kernels/attention/parts/key_place.cuh).
    """

    text: str
    kind: str
    most: int = 0
    in_float: str = ""


@functools.lru_cache(maxsize=256)
def parsed(text: str) -> Node:
    """The tree. Raises WrongSymbol for text that is no such expression."""
    try:
        node = parse_expression(text, Position()).node
    except SpaceError as error:
        raise WrongSymbol(f"{_KEY} {text!r}: {error.message}", _KEY) from error
    _written(node, text)
    return node


def macro(text: str) -> str:
    """The replacement text of the macro `MACRO`: a float."""
    return _as_float(_written(parsed(text), text))


def _written(node: Node, whole: str, *, exact: bool = False) -> Text:
    """`exact`: whether a kernel must not round the parts of a product apart (see _SMALL)."""

    def wrong(why: str) -> WrongSymbol:
        return WrongSymbol(f"{_KEY} {whole!r}: {why}", _KEY)

    if isinstance(node, Literal):
        return _number(node.value, wrong)
    if isinstance(node, Name):
        if node.name not in NAMES:
            raise wrong(f"unknown name '{node.name}'; known: {', '.join(NAMES)}")
        if node.name == "score":
            return Text("(score)", "float")
        return Text(f"({node.name})", "int", _LENGTHS)
    if not exact and (sum_of := _as_a_sum(node, whole)) is not None:
        return sum_of
    scales = node.operator == "*" and any(map(_small, node.operands))
    exact = exact or node.operator in ("/", *_COMPARE) or (node.operator == "*" and not scales)
    parts = [_written(each, whole, exact=exact) for each in node.operands]
    if exact and node.operator == "*" and any(part.kind == "float" for part in parts):
        parts = [Text(f"static_cast<float>({_as_float(part)})", "float") for part in parts]
    found = _operation(node.operator, parts)
    if found is None:
        raise wrong(f"{node.operator} is not allowed in a {_KEY}")
    if why := _mixed(node.operator, parts) or _too_large(node.operator, found):
        raise wrong(why)
    if node.operator in ("//", "%") and not _divides_integers(node, parts):
        raise wrong(f"{node.operator} takes an integer and a positive number that is written out")
    return found


def _too_large(operator: str, found: Text) -> str:
    if found.most >= 1 << 63:
        return f"the integers of {operator} may need more than 64 bits"
    if len(found.text) + len(found.in_float) > _LONGEST:
        return "its text in C++ is too long, since min, max and abs repeat their operands"
    return ""


def _divides_integers(node: Operation, parts: list[Text]) -> bool:
    divisor = node.operands[1]
    integers = all(part.kind == "int" for part in parts)
    return integers and isinstance(divisor, Literal) and int(divisor.value) > 0


def _as_a_sum(node: Node, whole: str) -> Text | None:  # noqa: PLR0911
    """`score + change if condition else score` as score + (1 or 0) * change: a kernel chooses the
    factor once for a row, not for each score. Only if the condition depends on neither score nor
    key, and the change is a small factor times integers, which is finite. None for other nodes."""
    if not (isinstance(node, Operation) and node.operator == "if"):
        return None
    condition, changed, unchanged = node.operands
    if not (isinstance(changed, Operation) and changed.operator in ("+", "-")):
        return None
    score, change = changed.operands
    if not (isinstance(change, Operation) and change.operator == "*"):
        return None
    factor, integers = change.operands
    if not (_is_score(score) and _is_score(unchanged) and _small(factor)):
        return None
    # This comes before either is written: else trees of such nodes are written twice at each level.
    if "score" in _names(change) or _names(condition) & {"score", "column"}:
        return None
    truth, product = _written(condition, whole), _written(change, whole)
    if truth.kind != "bool" or _written(integers, whole).kind != "int":
        return None
    chosen = f"(({truth.text} ? 1.0f : 0.0f) * {_as_float(product)})"
    return Text(f"((score) {changed.operator} {chosen})", "float")


def _is_score(node: Node) -> bool:
    return isinstance(node, Name) and node.name == "score"


def _names(node: Node) -> set[str]:
    return {name.name for name in names_in(node)}


def _mixed(operator: str, parts: list[Text]) -> str:
    """Why the operands are not of the kinds that the operator takes; "" if they are."""
    truths = [part.kind == "bool" for part in parts]
    if operator == "if" and truths[1] != truths[2]:
        return "the two sides of an if are a number and a condition"
    conditions = parts[:1] if operator == "if" else parts if operator in ("not", *_LOGIC) else []
    if not all(truths[: len(conditions)]):
        return f"{operator} takes a condition, found a number: compare it with something"
    if operator not in ("if", "not", *_LOGIC) and any(truths):
        return f"{operator} takes numbers, found a condition"
    return ""


def _number(value: Value, wrong: Callable[[str], WrongSymbol]) -> Text:
    if isinstance(value, bool):
        return Text("true" if value else "false", "bool")
    if isinstance(value, str) or not math.isfinite(value) or abs(value) >= _MOST:
        raise wrong(f"expected a number below 2**31, found {value!r}")
    if isinstance(value, int):
        return Text(f"{value}", "int", abs(value))
    return Text(f"{value!r}f", "float")


def _operation(operator: str, parts: list[Text]) -> Text | None:  # noqa: PLR0911
    floats = any(part.kind == "float" for part in parts)
    kind = "float" if floats else "int"
    a, *rest = [_as_float(each) if floats else each.text for each in parts]
    b = rest[0] if rest else ""
    most = max(part.most for part in parts)
    if operator == "neg":
        return Text(f"(-{a})", kind, most)
    if operator == "abs":
        number = f"static_cast<float>({_as_float(parts[0])})"
        in_float = f"({number} < 0 ? -{number} : {number})" if kind == "int" else ""
        return Text(f"(+{a} < 0 ? -+{a} : +{a})", kind, most, in_float)
    if operator == "not":
        return Text(f"(!{a})", "bool")
    if operator in _ARITHMETIC:
        most = (math.prod if operator == "*" else sum)(part.most for part in parts)
        wide = kind == "int" and most >= 1 << 31
        return Text(f"({f'static_cast<long long>({a})' if wide else a} {operator} {b})", kind, most)
    if operator in _COMPARE:
        return Text(f"({a} {operator} {b})", "bool")
    if operator in _LOGIC:
        return Text(f"({_LOGIC[operator].join(part.text for part in parts)})", "bool")
    if operator == "/":
        return Text(f"({_as_float(parts[0])} / {_as_float(parts[1])})", "float")
    if operator in ("//", "%"):
        return _division(operator, a, b, [part.most for part in parts])
    if operator in ("min", "max"):
        return Text(_extreme("<" if operator == "min" else ">", [a, *rest], floats), kind, most)
    if operator == "if":
        condition, *branches = parts
        floats = any(each.kind == "float" for each in branches)
        first, second = (_as_float(each) if floats else each.text for each in branches)
        of = "float" if floats else branches[0].kind
        return Text(f"({condition.text} ? {first} : {second})", of, most)
    return None


def _division(operator: str, a: str, b: str, most: list[int]) -> Text:
    """It rounds down, as the language's does."""
    if sum(most) >= 1 << 31:
        a = f"static_cast<long long>({a})"
    rest = f"(({a} % {b} + {b}) % {b})"
    if operator == "%":
        return Text(rest, "int", most[1])
    return Text(f"(({a} - {rest}) / {b})", "int", max(most))


def _extreme(sign: str, texts: list[str], floats: bool) -> str:
    """The minimum or maximum. It compares in pairs, because each level of nesting doubles the
    text."""
    while len(texts) > 1:
        pairs = [texts[i : i + 2] for i in range(0, len(texts), 2)]
        texts = [_one_of(pair[0], pair[1], sign, floats) if pair[1:] else pair[0] for pair in pairs]
    return texts[0]


def _one_of(a: str, b: str, sign: str, floats: bool) -> str:
    """NaN if either is NaN. One that may be NaN comes last, since comparisons with it are false."""
    if floats and _may_be_nan(a):
        a, b = b, a
    unless = f" || {a} != {a}" if floats and _may_be_nan(a) else ""
    return f"({a} {sign} {b}{unless} ? {a} : {b})"


def _may_be_nan(number: str) -> bool:
    return "(score)" in number or " / " in number


def _as_float(part: Text) -> str:
    return part.text if part.kind == "float" else part.in_float or f"(1.0f * {part.text})"


def _small(node: Node) -> bool:
    value = node.value if isinstance(node, Literal) else None
    return isinstance(value, int | float) and abs(value) <= _SMALL
