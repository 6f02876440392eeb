from __future__ import annotations

import random
from collections.abc import Iterator

from evotune.search.folded import SeenConfigurations, UnseenConfigurations
from evotune.space.search_space import ExplicitSpace
from evotune.trial import Configuration

from .landscapes import recording, small_space


class CountingSpace(ExplicitSpace):
    """Counts the configurations that were enumerated."""

    def __init__(self) -> None:
        space = recording().space
        super().__init__(space.parameters, space.enumerate())
        self.enumerated = 0

    def enumerate(self) -> Iterator[Configuration]:
        for configuration in super().enumerate():
            self.enumerated += 1
            yield configuration


def test_remembers_what_was_added_and_nothing_else() -> None:
    members = list(small_space().enumerate())
    seen = SeenConfigurations()
    for configuration in members[::2]:
        seen.add(configuration)
        seen.add(configuration)
    assert [c in seen for c in members] == [i % 2 == 0 for i in range(len(members))]
    assert len(seen) == len(members[::2])


def test_a_snapshot_of_what_was_seen_restores_it() -> None:
    members = list(small_space().enumerate())
    seen, restored = SeenConfigurations(), SeenConfigurations()
    for configuration in members[::3]:
        seen.add(configuration)
    restored.restore(seen.snapshot())
    assert [c in restored for c in members] == [c in seen for c in members]
    assert restored.snapshot() == seen.snapshot()


def test_the_first_free_one_skips_told_and_pending() -> None:
    members = list(small_space().enumerate())
    seen = SeenConfigurations()
    unseen = UnseenConfigurations(small_space(), seen)
    assert unseen.first(()) == members[0]
    assert unseen.first(set(members[:3])) == members[3]
    seen.add(members[0])
    assert unseen.first({members[1]}) == members[2]
    assert unseen.first(()) == members[1]
    assert unseen.first(members) is None
    assert unseen.first(()) == members[1]


def test_enumeration_is_lazy_and_done_once() -> None:
    space, seen = CountingSpace(), SeenConfigurations()
    unseen = UnseenConfigurations(space, seen)
    for _ in range(50):
        configuration = unseen.first(())
        assert configuration is not None
        seen.add(configuration)
    assert space.enumerated == 50


def test_sampling_falls_back_on_the_enumeration_when_nearly_everything_is_seen() -> None:
    space, seen = recording().space, SeenConfigurations()
    members = list(space.enumerate())
    for configuration in members[:-1]:
        seen.add(configuration)
    unseen = UnseenConfigurations(space, seen)
    assert unseen.sample(random.Random(0), (), attempts=3) == members[-1]
    assert unseen.sample(random.Random(0), {members[-1]}, attempts=3) is None
