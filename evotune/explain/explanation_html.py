"""An explanation as HTML: a fragment for a notebook, and a page of its own.

Text enters by `html.escape` alone. Pictures are boxes whose widths are shares; there is no script.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from evotune.explain._explanation_text import pair_line, shown_effects, waits_of
from evotune.report import wording
from evotune.report.wording import printable

if TYPE_CHECKING:
    from evotune.explain.explanation import Explanation

_STYLE = """
.evotune-why { font: 14px/1.45 system-ui, sans-serif; max-width: 60rem; }
.evotune-why table { border-collapse: collapse; margin: .3rem 0 1rem; }
.evotune-why td, .evotune-why th { padding: .15rem .7rem .15rem 0; text-align: left;
  vertical-align: top; }
.evotune-why .bar { display: inline-block; width: 12rem; background: #8882; }
.evotune-why .bar i { display: block; height: .8rem; background: #36c; }
.evotune-why .quiet { opacity: .65; }
"""


def html_page_of(found: Explanation) -> str:
    """A page of its own that needs nothing else."""
    title = html.escape(printable(f"{found.space}: trial {found.trial} explained"))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<title>{title}</title></head><body style="margin: 2rem">\n{html_of(found)}\n'
        "</body></html>\n"
    )


def html_of(found: Explanation) -> str:
    """A fragment with its own style."""
    return f'<div class="evotune-why"><style>{_STYLE}</style>{"".join(_parts(found))}</div>'


def _parts(found: Explanation) -> Iterator[str]:
    yield f"<p><b>{_text(found.headline)}</b></p>"
    limiter = found.limiter
    yield _heading(f"Held by: {limiter.name or 'not known'}")
    facts = "".join(f"<li>{_text(f.text)} {_quiet(f.kind)}</li>" for f in limiter.evidence)
    yield f"<ul>{facts}</ul><p class='quiet'>Rule: {_text(limiter.rule)}</p>"
    if found.roofline is not None and found.roofline.units:
        yield _heading(f"Busy on {found.roofline.case}")
        yield _table(
            (_text(u.name), _bar(u.share), f"{u.share:.0%}", _quiet(u.kind))
            for u in found.roofline.units
        )
    stalls = waits_of(found.counters)
    if stalls:
        yield _heading("Cycles that a warp waits between two instructions")
        most = max(stalls.values())
        ranked = sorted(stalls.items(), key=lambda item: -item[1])[:8]
        yield _table((_text(name), _bar(c / most), f"{c:.1f}") for name, c in ranked)
    yield from _effects(found)
    yield from _space(found)
    if found.against is not None:
        yield _heading(f"Against {found.against.name}")
        yield _items(f"{line.text} ({line.kind})" for line in found.against.lines)
    if found.next:
        yield _heading("Next")
        yield _table(
            (
                _text(s.kind),
                _text(s.text),
                f"{s.estimate:.2f}x",
                _measured(s.measured),
                _text(s.rule),
            )
            for s in found.next
        )
    if found.missing:
        yield _heading("Missing")
        yield _items(found.missing)


def _effects(found: Explanation) -> Iterator[str]:
    shown = shown_effects(found.effects)[:12]
    if not shown:
        return
    yield _heading("What its choices are worth")
    most = max(abs(math.log(e.worth or 1)) for e in shown) or 1.0
    yield _table(
        (
            _text(f"{e.parameter}={wording.value_text(e.to)} over {wording.value_text(e.source)}"),
            _bar(abs(math.log(e.worth or 1)) / most),
            f"{e.worth:.2f}x" + (f" [{e.low:.2f}, {e.high:.2f}]" if e.low is not None else ""),
            _quiet(e.basis),
            _text(e.because),
        )
        for e in shown
    )


def _space(found: Explanation) -> Iterator[str]:
    over = found.over_space
    if over.importance:
        yield _heading(f"What decides, over {over.valid} valid trials")
        yield _table(
            (_text(i.parameter), _bar(i.best), f"{i.best:.0%}") for i in over.importance[:8]
        )
    texts = [
        *(pair_line(pair) for pair in over.pairs),
        *(cliff.text for cliff in over.cliffs),
        *(value.text for value in over.hopeless[:8]),
    ]
    if texts:
        yield _items(texts)


def _measured(value: float | None) -> str:
    return f"measured {value:.3f}x" if value is not None else ""


def _heading(text: str) -> str:
    return f"<h4>{_text(text)}</h4>"


def _items(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(text)}</li>' for text in texts)}</ul>"


def _table(rows: Iterable[Sequence[str]]) -> str:
    """The cells are HTML."""
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{lines}</table>"


def _bar(share: float) -> str:
    return f'<span class="bar"><i style="width: {100 * min(max(share, 0.0), 1.0):.0f}%"></i></span>'


def _quiet(text: str) -> str:
    return f'<span class="quiet">{_text(text)}</span>'


def _text(text: str) -> str:
    return html.escape(printable(text))
