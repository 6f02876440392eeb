"""`Explanation`, which is printed as text, and shown as HTML in a notebook or as a page.

All text is escaped by `html.escape`. Pictures are SVG; there is no script.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from evotune.explain.explanation_pictures import choice_text, explanation_pictures, no_waits_text
from evotune.explain.explanation_text import (
    NO_DIFFERENCE,
    against_line,
    changed_line,
    estimate_line,
    pair_line,
    shown_effects,
    text_of,
)
from evotune.explain.findings import Findings
from evotune.report.html.pictures import figure_html, picture_style
from evotune.util.words import printable

_STYLE = """
.evotune-why { font: 14px/1.5 system-ui, sans-serif; max-width: 72rem; }
.evotune-why .scroll { overflow-x: auto; }
.evotune-why table { border-collapse: collapse; margin: .3rem 0 1rem; }
.evotune-why td { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top; }
.evotune-why h3 { font-size: 15px; margin: 1rem 0 .2rem; }
.evotune-why ul { margin: .2rem 0; padding-left: 1.3rem; }
.evotune-why .quiet { opacity: .7; }
"""
_PAGE_STYLE = """
:root { color-scheme: light dark; --card: #fff; --ink: #1c2024; --quiet: #626a73; --line: #dfe2e5;
  --accent: #2f62d0; --good: #1a7f4b; --cloud: #9aa3ad; }
@media (prefers-color-scheme: dark) { :root { --card: #1a1d21; --ink: #e6e8ea; --quiet: #9aa3ad;
  --line: #31363c; --accent: #7ea6ff; --good: #55c58c; --cloud: #6c7681; } }
body { background: var(--card); color: var(--ink); margin: 0; padding: 20px;
  overflow-wrap: break-word; }
"""


class Explanation(Findings, frozen=True, kw_only=True):
    """Why a candidate is as fast as it is. `str()` gives the text of `evotune explain`."""

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = 80) -> str:
        """The explanation as text, wrapped at `width` columns."""
        return text_of(self, width)

    def _repr_html_(self) -> str:
        return html_of(self)


def html_page_of(found: Findings) -> str:
    """The explanation as a complete HTML page that needs no other file."""
    title = html.escape(printable(f"{found.space}: trial {found.trial} explained"))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title><style>{_PAGE_STYLE}</style></head><body>\n{html_of(found)}\n"
        "</body></html>\n"
    )


def html_of(found: Findings) -> str:
    """The explanation as an HTML fragment with its own style."""
    style = f"<style>{_STYLE}{picture_style()}</style>"
    return f'<div class="evotune-why">{style}{"".join(_parts(found))}</div>'


def _parts(found: Findings) -> Iterator[str]:
    yield f"<p><b>{_text(found.headline)}</b></p>"
    limiter = found.limiter
    yield _heading(f"Limited by: {limiter.name or 'unknown'}")
    facts = "".join(f"<li>{_text(f.text)} {_quiet(f.kind)}</li>" for f in limiter.evidence)
    yield f"<ul>{facts}</ul><p class='quiet'>Rule: {_text(limiter.rule)}</p>"
    figures = "".join(figure_html(picture) for picture in explanation_pictures(found))
    yield f'<div class="evotune-pictures">{figures}</div>'
    if no_waits_text(found):
        yield f"<p class='quiet'>{_text(no_waits_text(found))}</p>"
    reasons = [effect for effect in shown_effects(found.effects) if effect.because]
    if reasons:
        yield _heading("Differences in the machine that go with a choice")
        yield _table((_text(choice_text(e)), _text(e.because)) for e in reasons)
    over = found.over_space
    texts = [
        *(pair_line(pair) for pair in over.pairs),
        *(cliff.text for cliff in over.cliffs),
        *(value.text for value in over.hopeless[:8]),
    ]
    if texts:
        yield _heading("Over the space")
        yield _items(texts)
    if found.against is not None:
        yield _heading(against_line(found.against))
        if found.against.changed:
            yield f"<p>{_text(changed_line(found.against))}</p>"
        texts = [f"{line.text} ({line.kind})" for line in found.against.lines]
        yield _items(texts or [NO_DIFFERENCE])
    if found.next:
        yield _heading("Next")
        yield _items(f"{s.kind}: {s.text}. {s.rule}; {estimate_line(s)}" for s in found.next)
    if found.missing:
        yield _heading("Missing")
        yield _items(found.missing)


def _heading(text: str) -> str:
    return f"<h3>{_text(text)}</h3>"


def _items(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(text)}</li>' for text in texts)}</ul>"


def _table(rows: Iterable[Sequence[str]]) -> str:
    """The cells are HTML."""
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{lines}</table></div>'


def _quiet(text: str) -> str:
    return f'<span class="quiet">{_text(text)}</span>'


def _text(text: str) -> str:
    return html.escape(printable(text))
