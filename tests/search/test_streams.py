from __future__ import annotations

from evotune.search.strategy import stream


def test_a_stream_is_fixed_for_good() -> None:
    """A run that an earlier version made resumes with exactly these draws."""
    assert stream(0, "propose", 7).getrandbits(32) == 2495254236
    assert stream(0, "propose", 7).getrandbits(32) == 2495254236


def test_seed_purpose_and_number_each_give_another_stream() -> None:
    streams = [stream(0, "a", 1), stream(1, "a", 1), stream(0, "b", 1), stream(0, "a", 2)]
    assert len({rng.random() for rng in streams}) == 4
