"""Trials of one machine code and launch, and the choice of trials for a leaderboard's head."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Container, Mapping

from evotune.store import RunStore


def leaders(
    links: Mapping[int, int | None], stored: Container[int] | None = None
) -> dict[int, int]:
    """Trial -> its leader, the first stored trial with the same machine code, for all of `links`.

    `links` maps a trial to an earlier trial with its machine code, or to None. `stored` has further
    trials that exist. A trial that a link names may be missing: it is not stored yet, or was lost
    with a killed run. Then the first trial whose links lead to it is the leader.
    """
    found: dict[int, int] = {}
    for number in links:
        chain = [number]
        while (link := links.get(chain[-1])) is not None and link not in chain:
            chain.append(link)
        circle = chain[chain.index(link) :] if link is not None else chain[-1:]  # in a damaged one
        found[number] = min(circle)
    named: dict[int, int] = {}
    for number, root in found.items():
        known = root in links or (stored is not None and root in stored)
        named.setdefault(root, root if known else number)
    return {number: named[root] for number, root in found.items()}


def stored_leaders(store: RunStore) -> dict[int, int]:
    """`leaders` of the stored duplicates; any other trial is its own leader."""
    links = store.duplicates()
    return leaders(links, store.known(set(links.values())))


def deciding(store: RunStore, rows: int, confirmed: Collection[int]) -> tuple[set[int], int]:
    """The trials that must be read for the first `rows` rows of a leaderboard, and the number of
    rows that follow them.

    A row stands for all trials of one machine code. The trials are those of the `confirmed` rows,
    of the next best `rows`, and of one more, which shows whether the last row shares its rank. They
    are none if every row is confirmed.
    """
    known = stored_leaders(store)
    followers = {number for number, leader in known.items() if leader != number}
    verdicts = {known.get(number, number) for number in confirmed}
    others = followers | verdicts
    leading = (number for number in store.fittest() if number not in others)
    first = list(itertools.islice(leading, min(rows, sys.maxsize - 1) + 1))
    more = store.count_ok() - sum(store.known(others).values()) - len(first)
    chosen = {*first, *verdicts} if first else set()
    return chosen | {number for number, leader in known.items() if leader in chosen}, more
