"""Machine code that somebody asks for again: from the build cache, or compiled."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from workers.faulty import compile_job

from evotune.backends.base.launch import Binary, CompileFailure
from evotune.runs import compiling
from evotune.runs.compiling import build_jobs


def test_a_process_starts_only_for_what_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path))
    job = compile_job("none")
    built = build_jobs([job], 60.0)[job.key]
    assert isinstance(built, Binary)
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "CompilePool", None)
        assert build_jobs([job], 60.0) == {job.key: msgspec.structs.replace(built, cached=True)}
    wrong = compile_job("compile_error")
    found = build_jobs([wrong, job], 60.0)
    assert isinstance(found[wrong.key], CompileFailure)
    assert found[job.key] == msgspec.structs.replace(built, cached=True)
    Path(built.path).write_bytes(b"damaged")
    again = build_jobs([job], 60.0)[job.key]
    assert isinstance(again, Binary)
    assert (again.sha256, again.cached) == (built.sha256, False)
