"""The features of attention that a call asks for, beyond the arguments of SDPA.

    alignment      "top_left" (row i's own key is i, as in SDPA) or "bottom_right" (i + keys -
                   queries). Causal masks, windows and ALiBi count from there.
    window         (left, right): a row sees at most so many keys before and behind its own one;
                   None or -1: all of them. A causal mask hides all keys behind.
    softcap        scores become softcap * tanh(score / softcap), after the scale, before all else
    alibi_slopes   (heads): scores become score - alibi_slopes[head] * |own key - key|
    score_mod      the text of a score modification that the package's kernels have compiled in
    sinks          (heads): a logit for each head that joins the sum of each row's exponentials
    return_lse     a second output (batch, heads, queries) in float32: the logarithm of that sum

A row that sees no key is 0, and its logarithm is that of its sink, or -inf.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from ._masks import Mask, mask_of

NAMES = ("alignment", "window", "softcap", "alibi_slopes", "score_mod", "sinks", "return_lse")
_ALIGNMENTS = ("top_left", "bottom_right")
_MOST_WINDOW = 1 << 30


class Asked(NamedTuple):
    """The features of a call, by their names in cases. A window of -1 is unlimited; a softcap of 0
    means none. A decision adds the mask, which is a tensor of the call."""

    bottom_right: bool = False
    window_left: int = -1
    window_right: int = -1
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    lse: bool = False
    score_mod: str = ""
    mask: Mask = Mask()

    def symbols(self) -> dict[str, Any]:
        """All symbols of a case that state its features."""
        return {
            **self._asdict(),
            **self.mask.symbols(),
            "has_window": self.window_left >= 0 or self.window_right >= 0,
            "has_softcap": self.softcap > 0.0,
            "given": ", ".join(self._numbers()),
        }

    def _numbers(self) -> dict[str, int | float]:
        found = {"window_left": self.window_left, "window_right": self.window_right}
        numbers: dict[str, int | float] = {n: size for n, size in found.items() if size >= 0}
        return numbers | ({"softcap": self.softcap} if self.softcap else {})

    def told(self) -> dict[str, Any]:
        """The features in use by name, as the shape of an entry in a list of cases gives them. The
        mask belongs to its variant."""
        found: dict[str, Any] = {"alignment": _ALIGNMENTS[1]} if self.bottom_right else {}
        found |= self._numbers()
        if self.score_mod:
            found["score_mod"] = self.score_mod
        return found | {name: True for name in ("alibi", "sinks", "lse") if getattr(self, name)}

    def words(self) -> str:
        """The features in use, in words: "" for none."""
        told = [name if value is True else f"{name} {value}" for name, value in self.told().items()]
        return ", ".join(filter(None, (*told, self.mask.words())))


NONE = Asked()


def asked_of(symbols: Mapping[str, Any]) -> Asked:
    """The features of a case with these symbols. A missing symbol has its value in `NONE`."""
    found = {name: symbols.get(name, value) for name, value in NONE._asdict().items()}
    for name in ("window_left", "window_right"):
        found[name] = int(found[name])
    return Asked(**{**found, "softcap": float(found["softcap"]), "mask": mask_of(symbols)})


def read_features(
    features: Mapping[str, Any], is_causal: bool, known: Container[str]
) -> tuple[Asked, torch.Tensor | None, torch.Tensor | None]:
    """The features of a call, its slopes and its sinks, from the keywords that it gave. `known` are
    the score modifications of the package. Raises TypeError for another keyword, and for slopes or
    sinks that are no tensor; ValueError, one line, for a value that makes no sense."""
    for name in features:
        if name not in NAMES:
            raise TypeError(f"attention() got an unexpected keyword argument {name!r}")
    alignment = features.get("alignment") or _ALIGNMENTS[0]
    if alignment not in _ALIGNMENTS:
        raise ValueError(f"alignment is {' or '.join(_ALIGNMENTS)}, got {alignment!r}")
    left, right = _window(features.get("window"))
    cap = features.get("softcap")
    cap = 0.0 if cap is None else cap
    require_softcap(cap)
    text = " ".join(str(features.get("score_mod") or "").split())
    require_known(text, known)
    slopes, sinks = features.get("alibi_slopes"), features.get("sinks")
    for name, tensor in (("alibi_slopes", slopes), ("sinks", sinks)):
        if not (tensor is None or isinstance(tensor, torch.Tensor)):
            raise TypeError(f"{name} is a tensor (heads), got {type(tensor).__name__}")
    asked = Asked(
        bottom_right=alignment == _ALIGNMENTS[1],
        window_left=left,
        window_right=-1 if is_causal else right,
        softcap=float(cap),
        alibi=slopes is not None,
        sinks=sinks is not None,
        lse=bool(features.get("return_lse", False)),
        score_mod=text,
    )
    return asked, slopes, sinks


def require_softcap(cap: Any) -> None:
    """Raises ValueError, one line, for anything but a finite number of at least 0, which is no
    cap."""
    is_number = isinstance(cap, (int, float, numbers.Real))  # NumPy's are Real
    if isinstance(cap, bool) or not is_number or not 0.0 <= cap < math.inf:
        found = repr(cap) if is_number else type(cap).__name__
        raise ValueError(f"softcap is a positive number, got {found}")


def require_known(score_mod: str, known: Container[str]) -> None:
    """Raises ValueError, one line, for a score modification that is not among the known ones."""
    if score_mod and score_mod not in known:
        raise ValueError(
            f"score_mod {score_mod!r} is none of this package's: info()['score_mods'] lists them, "
            "and only these are compiled in"
        )


def _window(window: Any) -> tuple[int, int]:
    """The ends of a window; -1 for an unlimited side."""
    if window is None:
        return -1, -1
    if isinstance(window, tuple | list) and len(window) == 2:
        left, right = window
        if _is_end(left) and _is_end(right):
            return -1 if left is None else int(left), -1 if right is None else int(right)
    raise ValueError(
        f"window is (left, right), integers of at least 0, or None for no end, got {window!r}"
    )


def _is_end(end: Any) -> bool:
    if end is None:
        return True
    is_integer = isinstance(end, (int, numbers.Integral))  # NumPy's, too
    return is_integer and not isinstance(end, bool) and -1 <= end <= _MOST_WINDOW


def simplified(asked: Asked, causal: bool, queries: int, keys: int) -> tuple[Asked, bool]:
    """The features without a window, a causal mask or an alignment that makes no difference for
    these lengths."""
    shift = keys - queries if asked.bottom_right else 0
    if asked.window_left >= queries - 1 + shift:  # the last row's own key
        asked = asked._replace(window_left=-1)
    if asked.window_right >= keys - 1 - shift:  # the keys behind the first row's own
        asked = asked._replace(window_right=-1)
    causal = causal and shift < keys - 1
    if _any_alignment(asked, causal, queries, keys):
        asked = asked._replace(bottom_right=False)
    return asked, causal


def _any_alignment(asked: Asked, causal: bool, queries: int, keys: int) -> bool:
    counts = causal or asked.alibi or asked.window_left >= 0 or asked.window_right >= 0
    return queries == keys or not counts


def same_cases(asked: Asked, causal: bool, queries: int, keys: int) -> Iterator[tuple[Asked, bool]]:
    """All ways to write the call's case, the call's own first: features and causal mask that give
    the same result for these lengths. A package may list any of them."""
    found = dict.fromkeys([(asked, causal), simplified(asked, causal, queries, keys)])
    if asked.window_right == 0 and not causal:
        found[asked._replace(window_right=-1), True] = None
    for each, is_causal in tuple(found):
        if _any_alignment(each, is_causal, queries, keys):
            found[each._replace(bottom_right=not each.bottom_right), is_causal] = None
    for mask in asked.mask.alike():
        yield from ((each._replace(mask=mask), is_causal) for each, is_causal in found)
