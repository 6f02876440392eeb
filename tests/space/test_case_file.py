"""Files of cases: what is read, and where mistakes are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evotune.errors import SpaceError
from evotune.export.runtime._missed import Misses
from evotune.space.reading.case_file import CaseEntry, given_cases, read_cases

CASES = [
    {"batch": 1, "heads": 8, "seq_len": 512, "head_dim": 64, "causal": True, "count": 3},
    {"batch": 2, "heads": 8, "seq_len": 100, "head_dim": 64, "dtype": "float16"},
]


def written(folder: Path, text: str, name: str = "cases.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def facts(entries: list[CaseEntry]) -> list[object]:
    return [(e.symbols, e.shape, e.variant, e.dtype, e.count) for e in entries]


def test_yaml_json_and_python_give_the_same_entries(tmp_path: Path) -> None:
    block = "- {batch: 1, heads: 8, seq_len: 512, head_dim: 64, causal: true, count: 3}\n"
    block += "- batch: 2\n  heads: 8\n  seq_len: 100\n  head_dim: 64\n  dtype: float16\n"
    found = [
        read_cases(written(tmp_path, block)),
        read_cases(written(tmp_path, json.dumps(CASES), "cases.json")),
        read_cases(written(tmp_path, "[{batch: 1, heads: 8, seq_len: 512, head_dim: 64, "
                           "causal: true, count: 3},\n" + block.split("\n", 1)[1].replace(
                               "- batch", "{batch").replace("\n  ", ", ").strip() + "}]")),
        given_cases(CASES),
    ]  # fmt: skip
    first = facts(found[0])
    assert all(facts(each) == first for each in found)
    assert found[0][0].symbols["causal"] is True
    assert (found[0][0].count, found[0][1].count, found[0][1].dtype) == (3, 1, "float16")
    assert not found[0][0].logged


def test_the_miss_log_of_a_package_is_such_a_file(tmp_path: Path) -> None:
    misses = Misses("package", "PyTorch")
    shape = {"batch": 1, "heads": 8, "kv_heads": 8, "seq_len_q": 9, "seq_len_k": 9, "head_dim": 64}
    case = {"shape": shape, "variant": {"causal": False}, "dtype": "float16"}
    misses.told.add("outside")
    misses.missed("outside", case, "far").count(5)
    misses.write(tmp_path / "misses.yaml")
    (entry,) = read_cases(tmp_path / "misses.yaml")
    assert entry.logged
    assert (entry.shape, entry.variant, entry.dtype, entry.count) == (
        *(shape, {"causal": False}),
        *("float16", 5),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ": the file is empty"),
        ("batch: 1\n", ":1:1: expected a list of cases such as"),
        ("[]\n", ": the list of cases is empty"),
        ("- {batch: 1}\n- 7\n", ":2:3: expected a case, a mapping of symbols, found 7"),
        ("- {batch: 1, count: 0}\n", ":1:21: expected count to be a positive number, found 0"),
        ("- {batch: 1, heads: [2]}\n", ":1:21: expected a number, true, false or a name"),
        ("- {batch: 1, batch: 2}\n", ":1:14: duplicate key 'batch'"),
        ("- {count: 2}\n", ":1:3: the case has no symbol"),
        ("- {shape: {batch: 1}, cost: 2}\n", ":1:29: unknown key 'cost' next to a shape"),
        ("- {shape: 3}\n", ":1:11: expected a mapping, found 3"),
        ("- {batch: 1, dtype: 3}\n", ":1:21: expected a dtype, found 3"),
        ("- {batch: .inf}\n", ":1:11: expected a finite number"),
    ],
)
def test_a_mistake_in_yaml_has_its_line_and_column(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpaceError) as caught:
        read_cases(written(tmp_path, text))
    assert f"cases.yaml{words}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"batch": 1}, {"batch": {}}]', "[1].batch: expected a number, true, false or a name"),
        ('[{"shape": {"batch": null}}]', "[0].shape.batch: expected a number"),
        ('[{"batch" 1}]', ":1:11: not valid JSON: expecting ':' delimiter"),
        ('[{"batch": 1, "batch": 2}]', ": not valid JSON: duplicate key 'batch'"),
        ('[{"batch": NaN}]', ": not valid JSON: expected a finite number, found NaN"),
        ("[" * 100_000, ": "),
    ],
)
def test_a_mistake_in_json_has_its_path(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpaceError) as caught:
        read_cases(written(tmp_path, text, "cases.json"))
    assert f"cases.json{words}" in str(caught.value)


def test_a_mistake_in_python_names_the_entry() -> None:
    with pytest.raises(SpaceError, match=r"^cases\[0\].heads: expected a number"):
        given_cases([{"batch": 1, "heads": None}])  # type: ignore[dict-item]


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(SpaceError, match="cannot read it"):
            read_cases(path)
    latin = tmp_path / "latin"
    latin.write_bytes(b"- {a: \xff}")
    with pytest.raises(SpaceError, match="expected UTF-8"):
        read_cases(latin)
