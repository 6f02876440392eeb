"""A trial whose outcome is undecided was not measured: it is no failure, and is asked once more."""

from __future__ import annotations

from pathlib import Path

import pytest

from evotune.run_options import RunOptions
from evotune.search.catalog import create_strategy
from evotune.search.evolution import Evolution
from evotune.space.bound import BoundSpace
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

