"""Cases that stand for others: where the first searches go."""

from __future__ import annotations

import random
from collections.abc import Sequence

from evotune.portfolios.points import Point, distance

_ROUNDS = 20


def representatives(
    points: Sequence[Point], count: int, seed: int, variants: Sequence[str] = ()
) -> list[int]:
    """The indexes of at most `count` points such that the weighted distances of all points to the
    nearest of them are small (k-medoids). The same points and seed give the same ones.

    The first is drawn, each further one lies farthest from those before it; then swaps improve
    them.
    """
    apart = [[distance(a, b, variants) for b in points] for a in points]
    weights = [point.weight for point in points]
    everywhere = range(len(points))
    rng = random.Random(f"representatives {seed}")
    chosen = [rng.choices(everywhere, weights)[0]]
    while len(chosen) < min(count, len(points)):
        nearest = [min(apart[i][j] for j in chosen) for i in everywhere]
        farthest = max(everywhere, key=lambda i: (nearest[i], weights[i], -i))
        if nearest[farthest] == 0.0:  # all others are like one of these
            break
        chosen.append(farthest)

    def cost(medoids: Sequence[int]) -> float:
        return sum(weights[i] * min(apart[i][j] for j in medoids) for i in everywhere)

    for _ in range(_ROUNDS):
        best, found = cost(chosen), None
        for at in range(len(chosen)):
            for i in everywhere:
                if i not in chosen:
                    swapped = [*chosen[:at], i, *chosen[at + 1 :]]
                    if (now := cost(swapped)) < best - 1e-12:
                        best, found = now, swapped
        if found is None:
            break
        chosen = found
    return chosen
