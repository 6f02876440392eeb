"""same_machine_code.py sees what a change of a kernel's text does to its machine code."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SPACE = "softmax-cpu"
HEADER = "kernels/attention/parts/simd.h"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.mark.parametrize(
    ("edit", "differs"),
    [
        (("// Vectors of floats", "// Vectors  of floats"), []),
        (("return a * b + c;", "return a * b - c;"), ["another code, file"]),
        (("return a * b + c;", "return a * b + ;"), ["another failed, code, file"]),
    ],
)
def test_a_comment_changes_nothing_and_an_operator_does(
    edit: tuple[str, str],
    differs: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("kernels/attention", "kernels/softmax"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "lab")
    script: Any = importlib.import_module("same_machine_code")
    monkeypatch.setattr(script, "compiled", lambda builds, _: [now(each) for each in builds])

    def now(build: Any) -> Any:
        return script.Build(build.space, build.device, build.job, script.made_by(build.job))

    saved = tmp_path / "saved"
    monkeypatch.setattr(
        "sys.argv", ["same", "--save", str(saved), "--only", SPACE, "--random", "0"]
    )
    script.main()
    assert json.loads(capsys.readouterr().out)["runs"] == 1

    monkeypatch.setattr(script, "ROOT", tmp_path)
    header = tmp_path / HEADER
    assert edit[0] in header.read_text()
    header.write_text(header.read_text().replace(*edit))
    monkeypatch.setattr("sys.argv", ["same", "--compare", str(saved)])
    with pytest.raises(SystemExit) as ended:
        script.main()
    *found, figures = capsys.readouterr().out.split("\n")[:-1]
    assert ended.value.code == bool(differs)
    assert json.loads(figures)["differ"] == len(differs)
    assert all(words in line for words, line in zip(differs, found, strict=True))
