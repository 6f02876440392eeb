"""A space of Python objects means the same as its space file."""

from __future__ import annotations

import dataclasses
import doctest
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import evotune.space.objects.kernel_objects
import evotune.space.objects.space_object
from evotune.api.given_space import materialize
from evotune.errors import SpaceError
from evotune.runs.setup import Setup, load_setup
from evotune.space.document import load_space, parse_space
from evotune.space.language import Expression
from evotune.space.objects import (
    Argument,
    Constraint,
    CppKernel,
    CudaKernel,
    Launch,
    Space,
    TensorMap,
    Workspace,
    booleans,
    choices,
    ints,
    powers_of_two,
    values,
)
from evotune.space.objects.space_object import yaml_text
from evotune.space.reading.yaml_source import parse_yaml
from tests.sweeps import swept

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "search_spaces").glob("*.yaml"))
EXAMPLE = Path(__file__).with_name("attention.yaml")
SOON = {
    *("attention_mma_decode", "attention_triton", "attention_cpu", "attention_varlen_wgmma"),
    *("attention_paged", "attention_varlen_cpu", "linear_skinny", "linear_mma", "matmul_cpu"),
    *("add_rms_norm_fp8", "softmax", "cross_entropy", EXAMPLE.stem),
}
"""Of spaces that are written alike, `make test` takes one; `make soak` takes all."""
_ELSEWHERE = ("path", "root", "text", "source", "file")


def said(value: object) -> object:
    """A document, or a part of it, without file paths and positions in the text."""
    if isinstance(value, Expression):
        return value.text
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {
            name: said(getattr(value, name))
            for name in names
            if name not in _ELSEWHERE and "position" not in name
        }
    if isinstance(value, Mapping):
        return {key: said(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [said(item) for item in value]
    return str(value) if hasattr(value, "values") else value


def first_keys(setup: Setup) -> list[str]:
    """The keys of the binaries that the default configuration needs."""
    assert setup.planner is not None
    proposal = setup.planner.proposal(0, setup.space.default())
    return [job.compile.key for job in proposal.cases]


@pytest.mark.parametrize(
    "path", swept([*SHIPPED, EXAMPLE], lambda path: path.stem in SOON), ids=lambda path: path.stem
)
def test_a_space_file_and_its_object_say_the_same(path: Path, tmp_path: Path) -> None:
    document = load_space(path)
    space = Space.from_yaml(path)
    assert said(space.document) == said(document)
    assert space.document.root.resolve() == document.root.resolve()
    assert said(parse_space(space.to_yaml())) == said(document)
    again = tmp_path / "space.yaml"
    again.write_text(space.to_yaml())
    assert Space.from_yaml(again).to_yaml() == space.to_yaml(), "the text is the same every time"


@pytest.mark.parametrize(
    "path", swept(SHIPPED, lambda path: path.stem in SOON), ids=lambda path: path.stem
)
def test_a_space_written_into_a_folder_is_the_same_space(path: Path, tmp_path: Path) -> None:
    gpu = "l4" if path.stem == "linear_mma" else "h200"
    device = "cpu" if load_space(path).kernels[0].language == "cpp" else gpu
    copy = materialize(Space.from_yaml(path), tmp_path, compile_only=True)
    theirs, ours = (load_setup(each, device, compile_only=True) for each in (path, copy))
    assert ours.space.size() == theirs.space.size()
    assert ours.space.default() == theirs.space.default()
    assert ours.cases == theirs.cases
    assert first_keys(ours) == first_keys(theirs)
    assert first_keys(ours)


def test_everything_can_be_said_by_objects(tmp_path: Path) -> None:
    kernel = CudaKernel(
        "k.cu",
        "f",
        ["x", Argument("n + 1", "int64"), TensorMap("x", box=[1, "B"], swizzle=64), "w"],
        [Launch(["n"], ["B"], shared_bytes="4 * B", when="B > 1"), Launch(["n"], [32], entry="g")],
        supports={"arch": ">= 80", "n": [64]},
        define=["n"],
        workspace={"w": Workspace("4 * n", init="zero_once")},
        constant_memory={"c": "x"},
        options=["-O{L}"],
        deterministic=False,
        alternative="other",
    )
    space = Space(
        name="all",
        description="Everything: # and 'quotes'",
        kernels=[kernel, dataclasses.replace(kernel, name="second")],
        problem="attention",
        dtype="float16",
        shapes=[{"n": np.int64(64)}],
        variants=[{"causal": False}, {"causal": True}],
        held_out=[{"n": 100}],
        let={"doubled": "2 * n"},
        parameters={
            "B": (32, 64),
            "L": ints(1, 3),
            "P": powers_of_two(1, 8, default=2),
            "C": choices("xor", "no", when="B > 32", otherwise="no"),
            "U": booleans(when="P > 1"),
            "V": values([1, 3], default=3),
            "R": range(4),
        },
        constraints=["B > P", Constraint("L < 4", reason="as I say")],
        after_compile=["registers < 200"],
        baseline="torch:best",
        objective=["speedup", "error"],
        deterministic=True,
        default={"B": 64},
        try_first=[{"B": 32}],
        search={"population": 16},
        budget={"trials": 10, "minutes": 1.5},
        stop={"no_improvement": 5},
        timeouts={"compile_s": 30},
        root=tmp_path,
    )
    expected = parse_space(
        """
name: all
description: "Everything: # and 'quotes'"
problem:
  name: attention
  dtype: float16
  shapes: [{n: 64}]
  variants: [{causal: false}, {causal: true}]
  held_out: [{n: 100}]
kernels:
  f:
    source: k.cu
    entry: f
    supports: {arch: ">= 80", n: [64]}
    define: [n]
    arguments:
      - x
      - {value: n + 1, type: int64}
      - {tensor_map: x, box: [1, B], swizzle: 64}
      - w
    workspace: {w: {bytes: 4 * n, init: zero_once}}
    constant_memory: {c: x}
    options: ["-O{L}"]
    deterministic: false
    alternative: other
    launches:
      - {grid: [n], block: [B], shared_bytes: 4 * B, when: B > 1}
      - {grid: [n], block: [32], entry: g}
let: {doubled: 2 * n}
parameters:
  B: [32, 64]
  L: {range: [1, 3]}
  P: {pow2: [1, 8], default: 2}
  C: {choices: [xor, "no"], when: B > 32, otherwise: "no"}
  U: {bool: true, when: P > 1}
  V: {values: [1, 3], default: 3}
  R: [0, 1, 2, 3]
constraints: [B > P, {expr: L < 4, reason: as I say}]
after_compile: [registers < 200]
baseline: torch:best
objective: [speedup, error]
deterministic: true
default: {B: 64}
try_first: [{B: 32}]
search: {population: 16}
budget: {trials: 10, minutes: 1.5}
stop: {no_improvement: 5}
timeouts: {compile_s: 30.0}
"""
    )
    found = said(space.document)
    assert isinstance(found, dict)
    second = found["kernels"].pop()
    assert found["parameters"].pop(0)["parameter"] == "Categorical('KERNEL', ('f', 'second'))"
    assert second == {**found["kernels"][0], "name": "second"}
    assert found == said(expected)


def test_a_source_may_be_a_path_under_the_root_or_text(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "k.cpp").write_text('#include "shared.h"\n')
    (tmp_path / "inner" / "shared.h").write_text("// shared\n")
    common = {
        "problem": "attention",
        "shapes": [{"n": 1}],
        "parameters": {"A": [1]},
        "root": tmp_path,
    }
    file = CppKernel(tmp_path / "inner" / "k.cpp", "f")
    text = CppKernel(source_text='#include "inner/shared.h"\n', entry="g")
    space = Space(kernels=[file, text], **common)
    folder = tmp_path / "out"
    written = load_space(materialize(space, folder))
    assert [kernel.source for kernel in written.kernels] == [
        folder / "inner" / "k.cpp",
        folder / "g.cpp",
    ]
    assert (folder / "inner" / "shared.h").read_text() == "// shared\n"
    assert (folder / "g.cpp").read_text() == text.source_text
    missing = Space(kernel=CppKernel("absent.cpp", "f"), **common)
    with pytest.raises(SpaceError, match=r"cannot read source absent\.cpp") as caught:
        materialize(missing, folder)
    assert caught.value.place == "CppKernel"


def test_a_recorded_space_brings_its_recording(tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text("{}")
    (tmp_path / "space.yaml").write_text("name: old\nroot: ..\nrecorded: {file: times.json}\n")
    file = Space.from_yaml(tmp_path / "space.yaml")
    assert file.recorded == {"file": f"{tmp_path.name}/times.json"}
    space = Space(name="old", recorded={"file": "times.json", "delay_ms": 2}, root=tmp_path)
    assert "delay_ms: 2" in space.to_yaml()
    document = load_space(materialize(space, tmp_path / "out"))
    assert document.recorded is not None
    assert document.recorded.file == tmp_path / "out" / "times.json"


def words() -> st.SearchStrategy[str]:
    special = ["no", "1e2", "0o17", "007", "~", "null", "true", ".5", "1_000", "=", "<<", "- a"]
    special += ["a: b", "# x", "x #y", "", " ", "\n", "a\n\nb", "é", "'", '"', "[", "{a}", "!x"]
    special += ["&a", "*a", "|", "word " * 40, "@", "%", "a\tb", "\u2028", "-", "?"]
    return st.one_of(
        st.sampled_from(special), st.text(st.characters(codec="utf-8", exclude_categories=("C",)))
    )


DATA = st.recursive(
    st.one_of(
        words(),
        st.booleans(),
        st.integers(-(10**17), 10**17),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(words(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(words(), DATA, max_size=4))
def test_what_is_written_is_read_as_it_was(data: dict[str, object]) -> None:
    text = yaml_text(data)
    assert repr(parse_yaml(text).data) == repr(data)
    assert yaml_text(data) == text
    assert yaml.safe_load(text) is not None


WITH_EXAMPLES = [
    evotune.space.objects.kernel_objects,
    evotune.space.objects.kernel_objects,
    evotune.space.objects.space_object,
]


@pytest.mark.parametrize("module", WITH_EXAMPLES, ids=lambda module: module.__name__)
def test_the_examples_in_docstrings_hold(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_importing_the_objects_brings_neither_torch_nor_pandas() -> None:
    code = "import sys, evotune.space.objects; print({'torch', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
