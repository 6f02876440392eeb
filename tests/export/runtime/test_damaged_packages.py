"""Packages whose files were changed, removed, or put in each other's place: a plain reason, and
the fallback serves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evotune.export.exporting import export_runs
from evotune.runs.folder import RunFolder
from tests.export.making import fabricated, tiny_space
from tests.patience import PATIENCE_S

from .packages import attention_package, imported

DEEP = b"[" * 100_000


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module's folder of a package of a problem of a user's, which has its `compute`."""
    folder = tmp_path_factory.mktemp("softmax")
    run: RunFolder = fabricated(tiny_space("softmax-cpu", folder), folder)
    export_runs([run], folder / "package", "damaged_softmax")
    return folder / "package" / "damaged_softmax"


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def _make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _change_a_region(path: Path) -> None:
    found = json.loads(path.read_text())
    found["domain"][0]["ranges"] = {"rows": DEEP[:500].decode()}
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("binaries/*", _append),
        ("binaries/*", _make_a_pipe),
        ("binaries/*", _make_a_folder),
        ("binaries/*", Path.unlink),
        ("dispatch.json", _append),
        ("dispatch.json", _change_a_region),
        ("_dispatch.py", _append),
        ("_padded_models.py", _append),
        ("sources/*.yaml", _make_a_pipe),
    ],
)
def test_the_fallback_of_a_problem_serves_whatever_else_was_changed(
    softmax: Path, tmp_path: Path, file: str, change: Callable[[Path], None]
) -> None:
    package = tmp_path / softmax.name
    shutil.copytree(softmax, package)
    paths = list(package.glob(file))
    for path in paths:
        change(path)
    x = torch.randn(16, 64)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with imported(package) as module:
            torch.testing.assert_close(module.softmax(x), x.softmax(-1))
            misses = module.info()["misses"]
    if not file.startswith("sources"):
        assert misses["damaged file"]["count"] == 1
        words = misses["damaged file"]["first"]
        assert "\n" not in words
        assert any(path.name in words for path in paths)
        assert any(path.name in str(each.message) for each in said for path in paths)


@pytest.mark.parametrize("change", ["inputs", "compute"])
def test_a_fallback_that_is_not_known_serves_nothing(
    softmax: Path, tmp_path: Path, change: str
) -> None:
    package = tmp_path / softmax.name
    shutil.copytree(softmax, package)
    if change == "compute":
        _append(package / "_problem_compute.py")
    else:
        found = json.loads((package / "dispatch.json").read_text())
        found["problem"]["types"] = {"out": "float64"}
        (package / "dispatch.json").write_text(json.dumps(found))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with imported(package) as module, pytest.raises(ValueError, match="is not the file"):
            module.softmax(torch.randn(16, 64))


def test_attention_is_pytorchs_where_a_pipe_lies_in_a_binarys_place(
    tmp_path: Path, binaries: Path
) -> None:
    package = attention_package(tmp_path, binaries, "piped")
    for path in package.glob("binaries/*"):
        _make_a_pipe(path)
    q, k = torch.randn(1, 4, 40, 16), torch.randn(1, 2, 40, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with imported(package) as module:
            out = module.attention(q, k, k, enable_gqa=True)
            torch.testing.assert_close(
                out, torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
            )
            assert module.info()["misses"]["damaged file"]["count"] == 1


@pytest.mark.parametrize("file", ["dispatch.json", "certificate.json"])
@pytest.mark.parametrize("content", [DEEP, b"\x1b[2J", None])
def test_a_description_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, binaries: Path, file: str, content: bytes | None
) -> None:
    package = attention_package(tmp_path, binaries, "unreadable")
    if content is None:
        _make_a_pipe(package / file)
    else:
        (package / file).write_bytes(content)
    with pytest.raises(ImportError, match=file) as refused, imported(package):
        pass
    assert str(refused.value).isprintable()


def test_a_package_whose_expressions_are_nested_too_deeply_serves_nothing(
    tmp_path: Path, binaries: Path
) -> None:
    guard: list[object] | bool = True
    for _ in range(900):
        guard = ["not", guard]
    package = attention_package(tmp_path, binaries, "nested_guard")
    dispatch = json.loads((package / "dispatch.json").read_text())
    dispatch["kernels"][0]["guards"] = [guard]
    shutil.rmtree(package)
    whole = {key: value for key, value in dispatch.items() if key not in ("format", "package")}
    package = attention_package(tmp_path, binaries, "nested_guard", **whole)
    q, k = torch.randn(1, 4, 40, 16), torch.randn(1, 2, 40, 16)
    before = sys.getrecursionlimit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.setrecursionlimit(
            1000
        )  # Python's default, which other tests' libraries may have raised
        try:
            with imported(package) as module:
                module.attention(q, k, k, enable_gqa=True)
                assert module.info()["calls"] == 0
        finally:
            sys.setrecursionlimit(before)


@pytest.mark.parametrize(
    "file", ["*/binaries/*", "*/_dispatch.py", "*/certificate.json", "README.md"]
)
def test_pip_does_not_wait_for_a_pipe(softmax: Path, tmp_path: Path, file: str) -> None:
    whole = tmp_path / "package"
    shutil.copytree(softmax.parent, whole)
    for path in list(whole.glob(file)):
        _make_a_pipe(path)
    code = f"import _build; _build.build_wheel({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=whole,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0
    assert "is missing, or no file" in done.stderr


@pytest.mark.parametrize("file", ["__init__.py", "_package.py", "_dispatch.py"])
def test_an_import_does_not_wait_for_a_pipe(softmax: Path, tmp_path: Path, file: str) -> None:
    package = tmp_path / softmax.name
    shutil.copytree(softmax, package)
    _make_a_pipe(package / file)
    done = subprocess.run(
        [sys.executable, "-c", f"import {package.name} as it; it.softmax"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0
    assert package.name in done.stderr.splitlines()[-1]
