"""The reading guide of kernels/attention names every file and every space of that folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "kernels" / "attention"
GUIDE = (FOLDER / "README.md").read_text()
RUNGS = sorted(path for path in FOLDER.glob("[0-9]_*") if path.suffix != ".md")
KERNELS = [*RUNGS, *sorted(FOLDER.glob("attention_*"))]
NAMED_FILE = re.compile(r"\b((?:[0-9]|attention)_\w+\.(?:cpp|cuh?|md))\b")
TEXTS = (".cpp", ".cu", ".cuh", ".h", ".hpp", ".md", ".py", ".yaml")
PATHS = sorted(path for path in FOLDER.rglob("*") if path.is_file() and path.name != "README.md")
FILES = [path.relative_to(FOLDER).as_posix() for path in PATHS if "__pycache__" not in path.parts]
HEADERS = [name for name in FILES if name.endswith((".cuh", ".h"))]
NAMED_HEADER = re.compile(r"\b((?:parts|mma|wmma|wgmma|varlen|paged)/\w+\.(?:cuh|h)\b)")


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_in_the_guide(name: str) -> None:
    assert f"`{name}`" in GUIDE, "the guide names every file of its folder"


def test_the_folder_lists_the_rungs_in_the_order_of_the_guide() -> None:
    climbed = re.findall(r"^(\d)\. \*\*\[`(\S+)`\]", GUIDE, re.M)
    assert [name for _, name in climbed] == [each.name for each in RUNGS if each.suffix == ".cu"]
    assert all(name.startswith(f"{number}_") for number, name in climbed)


@pytest.mark.parametrize("folder", ["kernels", "search_spaces", "docs", "tests/attention_kernels"])
def test_a_kernel_that_is_named_is_there(folder: str) -> None:
    names = {each.name for each in FOLDER.iterdir()}
    texts = [each for each in (ROOT / folder).rglob("*") if each.suffix in TEXTS]
    named = {(each.name, name) for each in texts for name in NAMED_FILE.findall(each.read_text())}
    assert named
    assert not [(text, name) for text, name in named if name not in names]


@pytest.mark.parametrize("folder", ["kernels", "docs", "tests", "evotune"])
def test_a_header_that_is_named_is_there(folder: str) -> None:
    texts = [each for each in (ROOT / folder).rglob("*") if each.suffix in TEXTS]
    named = {(each.name, name) for each in texts for name in NAMED_HEADER.findall(each.read_text())}
    assert named
    assert not [(text, name) for text, name in named if name not in HEADERS]


@pytest.mark.parametrize("path", sorted((ROOT / "search_spaces").glob("attention_*.yaml")))
def test_every_space_is_in_the_guide(path: Path) -> None:
    assert f"`{path.stem.replace('_', '-')}`" in GUIDE


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
@pytest.mark.parametrize("part", ["Shapes", "Tunables", "Launch|SCHEDULE", "Archs", "Adds"])
def test_a_kernel_header_has_all_parts(path: Path, part: str) -> None:
    header = re.split(r"^(?:#include|import|from) ", path.read_text(), maxsplit=1, flags=re.M)[0]
    assert re.search(rf"^(?://)? *(?:{part})\b", header, re.M), f"{path.name}: no {part}"


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_lies_in_a_folder_and_begins_with_what_it_is(name: str) -> None:
    assert name.count("/") == 1
    head, found, _ = (FOLDER / name).read_text().partition("#pragma once")
    assert found
    assert re.fullmatch(r"(//.*\n)+", head), "comments alone"
    assert len(head) > 200
    if name.endswith(".cuh"):
        assert re.search(r"^// Archs +\S", head, re.M)
