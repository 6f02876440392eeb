"""The request for evidence of a configuration: its kernel does the work that was timed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from evotune.backends import registry
from evotune.backends.base.evidence import Evidence, EvidenceRequest
from evotune.errors import EvotuneError
from evotune.runs.evidence_gathering import Access
from tests.export.making import fabricated, tiny_space


def test_tools_count_a_kernel_on_the_lengths_of_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[EvidenceRequest] = []

    def gather(request: EvidenceRequest) -> Evidence:
        asked.append(request)
        raise InterruptedError

    monkeypatch.setattr(registry.named("cpu"), "gather_evidence", gather)
    access = Access.to(fabricated(tiny_space("attention-varlen-cpu", tmp_path), tmp_path))
    with pytest.raises(InterruptedError):
        access.gather(access.reopened.planner.bound.default())
    (request,) = asked
    assert {spec.name for spec in request.tensors if spec.is_index} == request.indices.keys()
    ends = np.frombuffer(request.indices["cu_seqlens_q"], np.int32)
    (q,) = [spec for spec in request.tensors if spec.name == "q"]
    assert (ends[0], ends[-1]) == (0, q.shape[0])
    assert (np.diff(ends) >= 0).all()


def test_code_for_the_cpu_at_hand_is_no_evidence_of_a_run_on_another(tmp_path: Path) -> None:
    access = Access.to(fabricated(tiny_space("softmax-cpu", tmp_path), tmp_path))
    away = dataclasses.replace(access, away="made on another CPU")
    with pytest.raises(EvotuneError, match="for the device at hand, not for the run's"):
        away.gather(access.reopened.planner.bound.default())
