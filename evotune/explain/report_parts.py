"""Reports with the part that explains the champion: the HTML page and the Markdown page.

The explanation is made from the run's store only: a report compiles and launches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from evotune.errors import UsageError
from evotune.explain.assembling import explain_data
from evotune.explain.explanation import Explanation
from evotune.explain.explanation_pictures import choice_text, explanation_pictures, no_waits_text
from evotune.explain.explanation_text import estimate_text, pair_line, shown_effects
from evotune.explain.sentences import is_complete, winner_sentences
from evotune.report import markdown
from evotune.report.data import RunData
from evotune.report.html import Explained, html_page
from evotune.report.html.pictures import picture_json
from evotune.trial import Json

_TRIES: Final = 2  # suggestions in the opening; the section has all


def explained_html(runs: Sequence[RunData]) -> str:
    """The page of these runs; each has its explanation."""
    return html_page(runs, [_for_page(_explained(data)) for data in runs])


def explained_markdown(data: RunData) -> str:
    """The page of a run, with a paragraph on its champion's limiter."""
    found = _explained(data)
    return markdown.page(data, found.headline if found is not None else "", _for_page(found))


def _explained(data: RunData) -> Explanation | None:
    """None for a run without a valid trial."""
    try:
        return explain_data(data)
    except UsageError:
        return None


def _for_page(found: Explanation | None) -> Explained | None:
    if found is None:
        return None
    return Explained(
        section=_section(found),
        why=list(winner_sentences(found)),
        complete=is_complete(found),
        tries=_tries(found),
        triable=any(item.configuration is not None for item in found.next[:_TRIES]),
    )


def _tries(found: Explanation) -> list[str]:
    return [
        f"Try this ({item.kind}): {item.text}. Estimate {estimate_text(item)}."
        for item in found.next[:_TRIES]
    ]


def _suggested(found: Explanation) -> list[Json]:
    return [[item.kind, item.text, estimate_text(item), item.rule] for item in found.next]


def _section(found: Explanation) -> Mapping[str, Json]:
    """The data that the page's script draws. Texts are made harmless by the page."""
    over = found.over_space
    return {
        "headline": found.headline,
        "limiter": found.limiter.name,
        "rule": found.limiter.rule,
        "facts": [[fact.text, fact.kind] for fact in found.limiter.evidence],
        "pictures": [picture_json(picture) for picture in explanation_pictures(found)],
        "no_waits": no_waits_text(found),
        "reasons": [
            [choice_text(effect), effect.because]
            for effect in shown_effects(found.effects)
            if effect.because
        ],
        "texts": [
            *(["depend on each other", pair_line(pair)] for pair in over.pairs),
            *(["cliff", cliff.text] for cliff in over.cliffs),
            *(["never valid", value.text] for value in over.hopeless),
        ],
        "next": _suggested(found),
        "missing": list(found.missing),
    }
