"""A strategy of an installed package: random search by another name."""

from __future__ import annotations

from evotune.search.random_search import RandomSearch


class Dice(RandomSearch):
    name = "dice"
