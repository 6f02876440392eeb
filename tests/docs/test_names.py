"""docs/writing-a-kernel.md lists the names that expressions know, with the values of GPUs."""

from __future__ import annotations

import re
from pathlib import Path

from evotune.backends.cpu.cpu_profile import profile as cpu_profile
from evotune.backends.cuda import gpu_profiles
from evotune.space.case_scope import COMPILED_FIGURES

PAGE = (Path(__file__).parents[2] / "docs" / "writing-a-kernel.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Names in expressions\n")[2].partition("\n## ")[0]
_, FIGURES, DEVICES = re.split(r"^\| (?:name|`device\.`) \|", SECTION, flags=re.M)


def cells(table: str) -> list[list[str]]:
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]


def test_the_figures_of_after_compile_are_those_that_it_knows() -> None:
    named = [name for row in cells(FIGURES) for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(COMPILED_FIGURES)


def test_the_values_of_gpus_are_those_of_the_profiles() -> None:
    names = [cell.strip() for cell in DEVICES.splitlines()[0].strip("| ").split("|")]
    assert names == ["l4", "a100", "h100", "h200"]
    shown = {row[0].strip("`"): row[1:] for row in cells(DEVICES)}
    profiles = [gpu_profiles.named(name).attributes for name in names]
    assert shown == {name: [f"{each[name]:,.0f}" for each in profiles] for name in profiles[0]}


def test_the_names_of_a_cpu_are_those_of_its_profile() -> None:
    (text,) = (part for part in SECTION.split("\n\n") if part.startswith("A CPU has "))
    named = re.findall(r"`(?:device\.)?(\w+)`", text)
    assert sorted(named) == sorted(cpu_profile().attributes)
