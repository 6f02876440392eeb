"""HIDE_SKIPS of 5_wgmma.cu on the CPU model of Hopper; needs no GPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from .features_on_the_cpu import Values
from .test_wgmma_features import (
    ALIBI,
    CLUSTER,
    HALVES,
    HIDDEN,
    KEPT,
    LATE,
    LONG,
    RIGHT,
    SHORT,
    SPLIT,
    TWO,
    complaints,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

MANY: Values = {**SHORT, "heads": 72, "seq_len": 250}  # more tiles than blocks of threads
SPLIT_IN_TWO: Values = {**SPLIT, "CONSUMER_WARPGROUPS": 3, "OVERLAP": True, "PING_PONG": True}
SKIPS: Values = {"HIDE_SKIPS": True, "SKIP_MASKED": True, "PING_PONG": True}
THREE: Values = {**TWO, "CONSUMER_WARPGROUPS": 3, "HIDE_SKIPS": True}


def _later(*values: object) -> Any:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("variant", "shape", "values"),
    [
        ({"causal": True, "window_left": 60}, MANY, {**THREE, **HIDDEN, **HALVES, **KEPT}),
        _later({"causal": True, "window_left": 60}, MANY, {**THREE, "BLOCK_N": 64}),
        _later({"causal": True, "window_left": 90}, MANY, {**THREE, "STAGES": 1}),
        _later({"causal": True, "window_left": 5}, MANY, {**THREE, **HIDDEN, "STAGES": 1}),
        _later({"window_left": 9, "window_right": 70}, LONG, THREE),
        _later({**RIGHT, "window_left": 40, "sinks": True}, LATE, {**TWO, **SKIPS}),
        _later({**RIGHT, "window_left": 40, "softcap": 30.0}, LONG, {**TWO, **SKIPS, **HALVES}),
        _later({"causal": True, "window_left": 70}, LONG, {**CLUSTER, "PERSISTENT": 1, **SKIPS}),
        _later({"causal": True}, LONG, {**THREE, **HALVES}),
        _later({**ALIBI, "lse": True}, LONG, {**THREE, **HIDDEN, "WEIGHT_SETS": 2}),
        _later({"causal": True, "window_left": 30}, LONG, {**THREE, "STORE": "direct"}),
        _later({"causal": True, "window_left": 30}, SHORT, {**THREE, "PACK_GQA": True}),
        _later({"causal": True, "window_left": 30}, LONG, {**THREE, **SPLIT_IN_TWO}),
    ],
)
def test_turns_of_skipped_blocks_may_be_given_on_later(
    variant: Values, shape: Values, values: Values, tmp_path: Path
) -> None:
    assert not complaints(tmp_path, shape, variant, values)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("      pass_turn();\n      skip_values();", "      skip_values();"),
        ("      skip_values();\n      ++step;", "      ++step;"),
        ("        skip_keys();\n        pass_turn();", "        skip_keys();"),
        ("      if (owes) {\n        skip_keys();", "      if (owes) {"),
    ],
)
def test_a_skipped_block_that_is_given_back_wrongly_shows(
    right: str, wrong: str, tmp_path: Path
) -> None:
    variant, values = {"causal": True, "window_left": 60}, {**THREE, **HIDDEN, **HALVES, **KEPT}
    assert complaints(tmp_path, MANY, variant, values, {right: wrong})
