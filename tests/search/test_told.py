from __future__ import annotations

import base64
import json
import random

import numpy as np
import pytest

from evotune.search.evolution import ToldTrials
from evotune.search.gaussian_process import Encoder
from evotune.trial import Configuration, Json

from .landscapes import small_space

MEMBERS = list(small_space().enumerate())


def _told(count: int) -> tuple[ToldTrials, list[tuple[Configuration, float | None, bool]]]:
    """Trials of a few configurations, told again and again, and a plain list of the same trials."""
    rng = random.Random(count)
    trials = ToldTrials(Encoder(small_space().parameters))
    plain: list[tuple[Configuration, float | None, bool]] = []
    for _ in range(count):
        configuration = rng.choice(MEMBERS)
        fitness = rng.choice([None, rng.random()])
        if any(configuration == known for known, _, _ in plain):
            trials.drop(configuration)
            plain = [(c, f, gone or c == configuration) for c, f, gone in plain]
        trials.add(configuration, fitness)
        plain.append((configuration, fitness, False))
    return trials, plain


@pytest.mark.parametrize("count", [0, 1, 40, 700])
def test_columns_say_what_was_told(count: int) -> None:
    trials, plain = _told(count)
    restored = ToldTrials(Encoder(small_space().parameters))
    restored.restore(json.loads(json.dumps(trials.snapshot())))
    for found in (trials, restored):
        assert len(found) == count
        assert [found.configuration(i) for i in range(count)] == [c for c, _, _ in plain]
        assert [found.fitness(i) for i in range(count)] == [
            None if gone else fitness for _, fitness, gone in plain
        ]
        assert [found.failed(i) for i in range(count)] == [
            fitness is None and not gone for _, fitness, gone in plain
        ]
        for before in {0, count // 2, count}:
            first = plain[:before]
            numbers, fitness = found.successes(before)
            assert list(zip(numbers.tolist(), fitness.tolist(), strict=True)) == [
                (i, value)
                for i, (_, value, gone) in enumerate(first)
                if value is not None and not gone
            ]
            newest, succeeded = found.newest(before, 7)
            kept = [i for i, (_, _, gone) in enumerate(first) if not gone][-7:]
            assert newest.tolist() == kept
            assert succeeded.tolist() == [float(plain[i][1] is not None) for i in kept]
            for configuration in MEMBERS:
                assert found.has(configuration, before) == any(
                    configuration == c for c, _, _ in first
                )


def test_goes_on_after_it_was_restored() -> None:
    trials, _ = _told(300)
    restored = ToldTrials(Encoder(small_space().parameters))
    restored.restore(trials.snapshot())
    for member in MEMBERS * 20:
        for each in (trials, restored):
            each.add(member, 0.5)
    assert restored.snapshot() == trials.snapshot()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("indices", "AAAA"),
        ("indices", "not base64"),
        ("fitness", None),
        ("fitness", "AAAA"),
        ("dropped", [400]),
        ("dropped", [-1]),
        ("dropped", "all"),
    ],
)
def test_a_damaged_snapshot_is_refused_and_changes_nothing(name: str, value: Json) -> None:
    trials, _ = _told(40)
    snapshot = trials.snapshot()
    with pytest.raises((ValueError, TypeError)):
        trials.restore({**snapshot, name: value})
    assert trials.snapshot() == snapshot


def test_values_outside_their_domain_are_refused() -> None:
    trials, _ = _told(3)
    indices = np.full((3, len(small_space().parameters)), 200, dtype=np.uint8)
    text = base64.b64encode(indices.tobytes()).decode()
    with pytest.raises(ValueError, match="cannot have been told"):
        trials.restore({**trials.snapshot(), "indices": text})
