"""The features of attention beside scale, mask and layout, as symbols of a case.

    alignment      top_left (row i's own key is i, as in SDPA) or bottom_right (i + seq_len_k -
                   seq_len_q, as chunks of a prefill and speculated tokens need it). Causal masks,
                   windows and ALiBi count from there.
    window_left    a row sees at most so many keys before its own one; not given: all of them
    window_right   the same for later keys; a causal mask hides all later keys
    softcap        scores become softcap * tanh(score / softcap), after the scale, before all else
    alibi          scores become score - alibi_slopes[head] * |own key - key|
    score_mod      an expression over score, head, row and column replaces the score: `_score_mod`
    sinks          a logit for each head, `sinks`, that joins a row's sum of exponentials alone
    lse            a second output: the logarithm of that sum, the sink included, in float32

A row that sees no key is 0, and its sum is that of the sink, or nothing: its logarithm is -inf.
`_attention_scores` computes all this with torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evotune.problems._pair_cover import other_scalar
from evotune.problems._score_mod import MACRO, macro, parsed
from evotune.problems.problem import Case, WrongSymbol
from evotune.trial import Value

KEYS = ("alignment", "window_left", "window_right", "softcap", "alibi", "score_mod", "sinks", "lse")
"""The names that a shape or a variant may give."""
ALIGNMENTS = ("top_left", "bottom_right")
_MOST_WINDOW = 1 << 30
_OTHER_CAPS = (3.0, 1.5)
_MOST_EDGE_SCORES = 1 << 22


def unsaid_alignment(told: Mapping[str, Value], case: Case) -> str:
    """A line where a causal case has fewer queries than keys, and `told` lacks the alignment; ""
    elsewhere. Users of SDPA and of FlashAttention expect different ones there."""
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
    """The features of a case. A window of -1 has no end; a softcap of 0 is none."""

    bottom_right: bool = False
    window_left: int = -1
    window_right: int = -1
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    lse: bool = False
    score_mod: str = ""

    @classmethod
    def given(cls, told: Mapping[str, Value], *, causal: bool) -> Features:
        """`told`: the values of some of `KEYS`. WrongSymbol for the first that makes no sense."""
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
        return cls(alignment == ALIGNMENTS[1], softcap=float(cap), **flags)

    @classmethod
    def of(cls, case: Case) -> Features:
        symbols: Mapping[str, Any] = case.symbols
        return cls(**{name: symbols[name] for name in cls.__dataclass_fields__})

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
        return found | {name: True for name in ("alibi", "sinks", "lse") if getattr(self, name)}

    def words(self) -> str:
        """For a label: "" without features."""
        told = self.told()
        numbers = ("window_left", "window_right", "softcap", "score_mod")
        names = {"window_left": "left", "window_right": "right"}
        return "".join(
            f",{names.get(name, name)}={value}" if name in numbers else f",{name}"
            for name, value in told.items()
            if name != "alignment"
        )

    def formulas(self) -> dict[str, tuple[str, str]]:
        """`score_mod` as a macro, without a text where there is none."""
        return {"score_mod": (MACRO, macro(self.score_mod) if self.score_mod else "")}

    def known_by(self) -> dict[str, frozenset[str]]:
        """The features that are in use, by the names that a user gives, each with the names of
        symbols and tensors by which a kernel may know it."""
        others = {"alignment": {"bottom_right"}, "alibi": {"alibi", "alibi_slopes"}}
        return {name: frozenset(others.get(name, {name})) for name in self.told()}

    def scalars(self) -> tuple[str, ...]:
        """The features that are numbers, of which tests may have others."""
        told = self.told()
        return tuple(n for n in ("window_left", "window_right", "softcap") if n in told)

    def kept(self) -> dict[str, Value]:
        """The features that every test of a case has, as symbols of its domain. `given` names the
        numbers, of which a domain has ranges."""
        used: dict[str, Value] = {
            name: getattr(self, name)
            for name in ("bottom_right", "alibi", "score_mod", "sinks", "lse")
            if getattr(self, name)
        }
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
    return found


def changed(features: Features, told: Mapping[str, Value], kept: Collection[str]) -> Features:
    """The features with other numbers, where those are not kept."""
    numbers: dict[str, Any] = {
        name: told[name] for name in features.scalars() if name in told and name not in kept
    }
    return replace(features, **numbers)
