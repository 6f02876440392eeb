"""A champion's domain in words: the cases that it was checked on, a row for each region."""

from __future__ import annotations

from evotune.report._table import TextTable
from evotune.report.wording import value_text
from evotune.trial import Domain

MEANING = (
    "What the champion was checked on: from the least to the most of each quantity, each two sizes "
    "in the bands that were tried together. What lies outside was not tried."
)


def domain_text(domain: Domain) -> str:
    """`on NVIDIA H200 (132 multiprocessors), contiguous tensors`."""
    count = f" ({domain.multiprocessors} multiprocessors)" if domain.multiprocessors else ""
    return f"on {domain.device}{count}, {domain.layout} tensors"


def domain_table(domain: Domain) -> TextTable:
    """A row for each region. Its cells are empty for names that only other regions have: cases of
    one problem may use different features."""
    fixed = tuple(dict.fromkeys(name for region in domain.regions for name in region.fixed))
    ranged = tuple(dict.fromkeys(name for region in domain.regions for name in region.ranges))
    return TextTable(
        (*fixed, *ranged, "cases"),
        (*(False for _ in fixed), *(True for _ in ranged), True),
        tuple(
            (
                *(value_text(region.fixed[n]) if n in region.fixed else "" for n in fixed),
                *(_range_text(*region.ranges[n]) if n in region.ranges else "" for n in ranged),
                str(region.cases),
            )
            for region in domain.regions
        ),
    )


def _range_text(low: float, high: float) -> str:
    texts = [str(end) if isinstance(end, int) else f"{end:.4g}" for end in (low, high)]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)
