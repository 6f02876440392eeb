"""Pages name each file of figures, and their tables are those that the benchmarks print."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
FIGURES = BENCHMARKS / "results"
PAGES = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "kernels").rglob("*.md"))


def benchmark(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "lab"))
    return importlib.import_module(name)


def rows(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if line.startswith("| ")]


def test_a_page_names_each_file_of_figures() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [path.name for path in sorted(FIGURES.iterdir()) if path.name not in text] == []


def test_the_tables_of_the_h200_are_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = set(
        rows((ROOT / "docs" / "lab" / "attention.md").read_text(encoding="utf-8").splitlines())
    )
    ladder = benchmark(monkeypatch, "attention_cuda")
    made = rows(ladder.table(ladder.load(FIGURES / "attention_h200.json")))
    studies = json.loads((FIGURES / "attention_story_h200.json").read_text())["studies"]
    made += rows(benchmark(monkeypatch, "attention_story").table(studies))
    assert len(made) > 40
    assert [row for row in made if row not in shown] == []


def test_readme_has_rows_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = benchmark(monkeypatch, "attention_cuda")
    records = ladder.load(FIGURES / "attention_h200.json")
    made = {
        f"{warm['baseline_us']:.2f} | {warm['time_us']:.2f} | {ladder.ratio(warm)} |"
        for _, _, warm in ladder.fastest(records)
    }
    readme = rows((ROOT / "README.md").read_text(encoding="utf-8").splitlines())
    shown = [row.split(" | ", 1)[1] for row in readme if "× [" in row]
    assert len(shown) == 5
    assert set(shown) <= made
