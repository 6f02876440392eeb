"""Each run has a secret of its own, kept in its store, from which the gate's checks are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from evotune.runs import setup as run_setup
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.store import RunStore
from evotune.trial import Configuration

from .runs import recorded_space, run_here


def _secret(tmp_path: Path, name: str) -> str:
    run = run_here(recorded_space(tmp_path / name), tmp_path / f"{name}-runs", trials=4)
    with RunStore.open_for_reading(run.store) as store:
        return str(store.meta("secret"))


def test_each_run_has_one_and_keeps_it(tmp_path: Path) -> None:
    first, second = _secret(tmp_path, "first"), _secret(tmp_path, "second")
    assert len(first) == len(second) == 16
    assert first != second


def test_whoever_opens_the_run_again_draws_from_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=4)
    told: list[str] = []
    monkeypatch.setattr(run_setup, "load_setup", lambda *_, secret, **__: told.append(secret))
    with RunStore.open_for_reading(run.store) as store:
        run_setup.load_run_setup(run, store)
        assert told == [store.meta("secret")]


def test_the_shapes_of_random_tests_follow_from_it() -> None:
    def labels(secret: str) -> list[str]:
        setup = load_setup(find_space("attention-cpu"), "cpu", secret=secret)
        assert setup.planner is not None
        proposal = setup.planner.proposal(
            7, Configuration(setup.space.default().to_json()), confirm=True
        )
        return [job.case.label for job in proposal.cases]

    assert labels("a") == labels("a") != labels("b")
