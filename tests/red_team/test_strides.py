"""The red team's kernels that take strides, on the CPU: wrong ones are refused, right ones pass.

Each goes through the search and, if it passes there, through a champion's confirmation. The timed
shape is contiguous: only edge shapes and random shapes have other layouts.
"""

from __future__ import annotations

import re

import pytest

from evotune.trial import OutcomeKind
from tests.sweeps import swept

from .conftest import Pipelines
from .pipeline import choices

SPACE = "cheats_cpu_strides.yaml"
WRONG = (OutcomeKind.WRONG_RESULT, OutcomeKind.NAN)
BOUNDS = (OutcomeKind.OUT_OF_BOUNDS,)
FAR = (OutcomeKind.ILLEGAL_ACCESS, OutcomeKind.WRONG_RESULT, OutcomeKind.NAN)
RIGHT = ("right", "last_row_first", "copies_rows_first")
LAID_OUT = r"(blhd|mixed|packed_qkv)\)"

EXPECTED: dict[str, tuple[tuple[OutcomeKind, ...], str]] = {
    "row_stride_ignored": (WRONG, LAID_OUT),
    "row_stride_of_heads": (WRONG, LAID_OUT),
    "batch_stride_from_sizes": (WRONG, LAID_OUT),
    "head_stride_from_sizes": (WRONG, r"mixed\)"),
    "strides_of_k_for_v": (WRONG, r"mixed\)"),
    "row_stride_of_k_for_v": (WRONG, r"mixed\)"),
    "head_stride_of_q_for_k": (WRONG, r"mixed\)"),
    "strides_of_q_for_out": ((*WRONG, *BOUNDS), LAID_OUT),
    "reads_the_gaps": (WRONG, LAID_OUT),
    "writes_a_whole_pitch": (BOUNDS, "wrote between the rows of out"),
    "writes_one_behind": (BOUNDS, "wrote between the rows of out"),
    "clears_a_gap_of_k": (BOUNDS, "wrote between the rows of k"),
    "offsets_of_32_bits": (FAR, r"far_(q|k|v|out)\)|SIGSEGV"),
}


SOON = {
    *("row_stride_ignored", "writes_one_behind"),
}
"""`make test` takes these; `make soak` takes all."""


@pytest.mark.parametrize("behaviour", swept(EXPECTED, SOON.__contains__))
def test_a_kernel_that_takes_strides_wrongly_is_refused(
    pipelines: Pipelines, behaviour: str
) -> None:
    kinds, reason = EXPECTED[behaviour]
    _, outcome = pipelines.of(SPACE).judge(behaviour)
    assert outcome.kind in kinds, outcome.reason
    assert re.search(reason, outcome.reason), outcome.reason


@pytest.mark.parametrize("behaviour", swept(RIGHT, SOON.__contains__))
def test_a_right_kernel_is_confirmed_for_every_layout(pipelines: Pipelines, behaviour: str) -> None:
    _, outcome = pipelines.of(SPACE).judge(behaviour)
    assert outcome.ok, outcome.reason
    assert outcome.domain is not None
    layouts = {"blhd", "contiguous", "mixed", "packed_qkv"}
    layouts |= {f"far_{name}" for name in ("q", "k", "v", "out")}
    assert layouts == set(outcome.domain.layout.split(", "))


def test_every_kernel_of_the_space_is_expected() -> None:
    assert choices(SPACE)[1] == [*RIGHT, *EXPECTED]
