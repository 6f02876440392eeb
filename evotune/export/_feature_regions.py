"""Completes the regions of attention: in a package a region also fixes the features not in use.

The domain of a run names only the features that its cases use. A package may hold kernels of
several runs, and a kernel serves only calls with exactly the features that it was checked for. So a
package's region gives each unused feature the value that means none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from evotune.export._case_shapes import CaseShapes
from evotune.export._expression_json import to_json
from evotune.space.language.expression import parse_expression
from evotune.space.reading.yaml_source import Position
from evotune.trial import Json, Value

NONE: Mapping[str, Value] = {
    "given": "",
    "bottom_right": False,
    "alibi": False,
    "score_mod": "",
    "sinks": False,
    "lse": False,
}
"""The features that a region fixes, with the values that mean none. `given` names the features that
are numbers: a window's ends and the soft cap, of which regions have ranges."""

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
