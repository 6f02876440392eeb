"""A mistake in a space of Python objects has the message of a space file and the object's path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.api.given_space import materialize
from evotune.errors import SpaceError
from evotune.runs.setup import load_setup
from evotune.space.bound import bind
from evotune.space.document import load_space, parse_space
from evotune.space.objects import (
    Argument,
    Constraint,
    CppKernel,
    CudaKernel,
    Launch,
    Space,
    TensorMap,
    TritonKernel,
    booleans,
    choices,
    ints,
    powers_of_two,
    values,
)
from evotune.space.reading.yaml_source import parse_yaml

from .spaces import DEVICE, HEAD, parse_text

PARAMETERS: dict[str, Any] = {"A": [1, 2], "B": [1, 2]}
PLAIN = CppKernel("kernels/a.cpp", "f", name="plain")


def space(**given: Any) -> Space:
    """The space of `spaces.HEAD`, with the given fields added or replaced."""
    common = {"name": "small", "problem": "attention", "shapes": [{"n": 64}]}
    if "kernels" not in given:
        common["kernel"] = PLAIN
    return Space(**{**common, "parameters": PARAMETERS, **given})


def mistake(make: Callable[[], object]) -> SpaceError:
    with pytest.raises(SpaceError) as caught:
        make()
    error = caught.value
    assert str(error) == f"{error.place}: {error.message}"
    assert "\n" not in str(error)
    assert (error.file, error.line, error.column) == ("", 0, 0)
    return error


BESIDE = "parameters: {A: [1, 2], B: [1, 2]}\n"
# A mistake in a space file, and the path of the same value in a `Space`.
BAD_VALUES = [
    ("parameters: {a: [1]}", 'Space.parameters["a"]'),
    ("parameters: {A: []}", 'Space.parameters["A"]'),
    ("parameters: {}", "Space.parameters"),
    ("parameters: [A]", "Space.parameters"),
    ("parameters: {A: 4}", 'Space.parameters["A"]'),
    ("parameters: {A: [1, 2, 1]}", 'Space.parameters["A"][2]'),
    ("parameters: {A: [1, true]}", 'Space.parameters["A"][1]'),
    ("parameters: {A: [1, 2.5]}", 'Space.parameters["A"][1]'),
    ("parameters: {A: [a-b]}", 'Space.parameters["A"][0]'),
    ("parameters: {A: {}}", 'Space.parameters["A"]'),
    ("parameters: {A: {rnage: [1, 2]}}", 'Space.parameters["A"].rnage'),
    ("parameters: {A: {range: [1, 2], pow2: [1, 2]}}", 'Space.parameters["A"]'),
    ("parameters: {A: {range: [1]}}", 'Space.parameters["A"]'),
    ("parameters: {A: {values: [1, 2], when: ~}}", 'Space.parameters["A"].when'),
    (BESIDE + "budget: {trials: 0}", 'Space.budget["trials"]'),
    (BESIDE + "budget: {trails: 3}", 'Space.budget["trails"]'),
    (BESIDE + "budget: {trials: 1e2}", 'Space.budget["trials"]'),
    (BESIDE + "deterministic: no", "Space.deterministic"),
    (BESIDE + "objective: per_shpe", "Space.objective"),
    (BESIDE + "objective: [speedup, eror]", "Space.objective[1]"),
    (
        BESIDE + "objective: [speedup, error]\nsearch: {strategy: evolution}",
        'Space.search["strategy"]',
    ),
    (BESIDE + "timeouts: {trial_s: 0}", 'Space.timeouts["trial_s"]'),
    (BESIDE + "default: {C: 1}", 'Space.default["C"]'),
    (BESIDE + "default: {A: 3}", 'Space.default["A"]'),
    (BESIDE + "try_first: [{A: 1}, {C: 1}]", 'Space.try_first[1]["C"]'),
    (BESIDE + "constraints: A > B", "Space.constraints"),
    (BESIDE + "constraints: [A >]", "Space.constraints[0], character 4"),
    (BESIDE + "constraints: ['A > $']", "Space.constraints[0], character 5"),
    (BESIDE + "constraints: [A > 1, {exp: A > 1}]", "Space.constraints[1].exp"),
    (BESIDE + "constraints: [{reason: r}]", "Space.constraints[0]"),
    (BESIDE + "constraints: ['A.b > 1']", "Space.constraints[0]"),
    (BESIDE + "after_compile: [registers < 9]", "Space.after_compile"),
    (BESIDE + "recorded: {file: x}", "Space.problem"),
    (BESIDE + "let: {x: ''}", 'Space.let["x"]'),
]


@pytest.mark.parametrize(("body", "place"), BAD_VALUES)
def test_a_mistake_has_the_words_of_a_space_file_and_the_object_s_path(
    body: str, place: str
) -> None:
    with pytest.raises(SpaceError) as caught:
        parse_text(body)
    data = parse_yaml(body).data
    assert isinstance(data, dict)
    error = mistake(lambda: space(**data))
    assert (error.message, error.place) == (caught.value.message, place)


BAD_DOMAINS = [
    (ints(4, 2), "", "expected [low, high], found 4 > 2"),
    (ints(1, 4, 0), "", "expected a step of at least 1, found 0"),
    (ints(1, 100001), "", "more than 100000 values"),
    (ints("1", 4), "[0]", "expected an integer, found '1'"),
    (powers_of_two(2, 12), "[1]", "12 is not a power of two"),
    (choices("x", True), "[1]", "expected an integer or an identifier, found a boolean"),
    (choices("x", "y", default="z"), ".default", "z is not a value of A; known: x, y"),
    (values([1], otherwise=2), ".otherwise", "'otherwise' needs a 'when'"),
    (booleans(when="A >"), ".when, character 4", "not an expression: invalid syntax"),
    (values([1], when="B > 0", otherwise="x"), ".otherwise", "x has another type than the values"),
    ({1, 2}, "", "expected a number, text, true, false, a list or a mapping, found {1, 2}"),
    ([1, None], "[1]", "expected an integer, true, false or an identifier, found nothing"),
    ([1, 10**18], "[1]", "an integer has at most 18 digits"),
    (["a\0"], "[0]", "control characters are not allowed"),
    ({"values": [1], 2: 3}, "", "expected text as key, found 2"),
]


@pytest.mark.parametrize(("domain", "where", "words"), BAD_DOMAINS)
def test_mistakes_in_a_parameter_are_named(domain: Any, where: str, words: str) -> None:
    error = mistake(lambda: space(parameters={"A": domain, "B": [1]}))
    assert error.place == f'Space.parameters["A"]{where}'
    assert words in error.message


GRID = [Launch(["n"], [32])]
BAD_KERNELS = [
    (CppKernel("a.rs", "f"), ".source", "expected a .cpp, .cc or .cxx file, found 'a.rs'"),
    (CppKernel("/etc/a.cpp", "f"), ".source", "expected a path under the root"),
    (CppKernel("../a.cpp", "f"), ".source", "expected a path under the root"),
    (CppKernel("a.cpp"), "", "missing key 'entry'"),
    (CppKernel(entry="f"), "", "missing key 'source'"),
    (CppKernel("a.cpp", "f g", name="k"), ".entry", "expected an identifier"),
    (CppKernel(7, "f"), ".source", "expected a text, found 7"),
    (CppKernel(entry="f", source_text=b"x"), ".source_text", "expected a text, found b'x'"),
    (CppKernel("a.cpp", "f", arguments="x"), ".arguments", "expected a list, found 'x'"),
    (CppKernel("a.cpp", "f", ["x", 3]), ".arguments[1]", "expected a text, found 3"),
    (CppKernel("a.cpp", "f", ["x", Argument(1, "int")]), ".arguments[1].type", "'int32', 'int64'"),
    (CppKernel("a.cpp", "f", supports={"n": ">= x"}), '.supports["n"]', "expected a comparison"),
    (
        CppKernel("a.cpp", "f", workspace={"w": {"bytes": 1, "init": "zero"}}),
        '.workspace["w"].init',
        "'poison' or 'zero_once'",
    ),
    (CudaKernel("a.cu", "f"), "", "a kernel for a GPU needs 'launches'"),
    (CudaKernel("a.cu", "f", launches=[Launch(["n"])]), ".launches[0]", "a launch needs a 'block'"),
    (
        CudaKernel("a.cu", "f", launches=[Launch(["n", "2 +"], [32])]),
        ".launches[0].grid[1], character 4",
        "not an expression",
    ),
    (
        CudaKernel("a.cu", "f", launches=[{"gird": [1], "block": [1]}]),
        ".launches[0].gird",
        "unknown key 'gird' in a launch; did you mean 'grid'?",
    ),
    (
        CudaKernel("a.cu", "f", ["x", TensorMap("x", box=[1, 300])], GRID),
        ".arguments[1].box[1]",
        "expected 1 to 256, found 300",
    ),
    (CudaKernel("a.cu", "f", [TensorMap("x y", [1])], GRID), ".arguments[0].tensor", "identifier"),
    (TritonKernel("a.py", "f", launches=GRID), ".launches[0].block", "Triton makes its blocks"),
]


@pytest.mark.parametrize(("kernel", "where", "words"), BAD_KERNELS)
def test_mistakes_in_a_kernel_are_named(kernel: Any, where: str, words: str) -> None:
    error = mistake(lambda: space(kernel=kernel))
    assert error.place == type(kernel).__name__ + where
    assert words in error.message
    error = mistake(lambda: space(kernels=[PLAIN, kernel]))
    assert error.place == "Space.kernels[1]" + where


BAD_TYPES: list[tuple[dict[str, Any], str, str]] = [
    ({"parameters": ["x"]}, "Space.parameters", "expected a mapping, found a list of 1"),
    (
        {"kernel": "k.cu"},
        "Space.kernel",
        "expected a kernel, such as CudaKernel(...), found 'k.cu'",
    ),
    ({"kernel": CppKernel}, "Space.kernel", "expected a kernel, such as CudaKernel(...)"),
    ({"kernels": PLAIN}, "Space.kernels", "expected a list"),
    ({"kernels": [PLAIN, PLAIN]}, "Space.kernels[1]", "a second kernel is named 'plain'"),
    ({"kernel": PLAIN, "kernels": [PLAIN]}, "Space.kernels", "exclude each other"),
    ({"problem": 3}, "Space.problem", "expected a name, path/to/problem.py:ClassName or a class"),
    ({"problem": None}, "Space.problem", "or a class, found nothing"),
    ({"problem": None, "shapes": None}, "Space", "missing key 'problem'"),
    ({"shapes": {"n": 1}}, "Space.shapes", "expected a list, found a mapping"),
    ({"shapes": [1]}, "Space.shapes[0]", "expected a mapping, found 1"),
    ({"shapes": [{"n": [1]}]}, 'Space.shapes[0]["n"]', "expected a number, true, false or an"),
    ({"shapes": [{"n": float("nan")}]}, 'Space.shapes[0]["n"]', "expected a finite number"),
    ({"shapes": [{"dtype": 1}]}, 'Space.shapes[0]["dtype"]', "cannot be a symbol of a shape"),
    ({"dtype": 16.5}, "Space.dtype", "expected an identifier"),
    ({"name": "two words"}, "Space.name", "letters, digits, '.', '_' and '-'"),
    ({"constraints": [Constraint("A > B", 3)]}, "Space.constraints[0].reason", "expected a text"),
    ({"description": object()}, "Space.description", "expected a number, text"),
    ({"root": "/no/such/../folder\0"}, "Space.root", "control characters"),
    ({"root": 3}, "Space.root", "expected the path of a folder, found 3"),
    ({"root": __file__}, "Space.root", "is not a folder"),
]


@pytest.mark.parametrize(("given", "place", "words"), BAD_TYPES)
def test_a_value_of_a_wrong_type_is_one_line(given: dict[str, Any], place: str, words: str) -> None:
    error = mistake(lambda: space(**given))
    assert error.place == place
    assert words in error.message


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    error = mistake(lambda: space(constraints=endless))
    assert "nested deeper than 20 levels" in error.message


UNBINDABLE: list[tuple[dict[str, Any], str, str]] = [
    ({"constraints": ["A > C"]}, "Space.constraints[0], character 5", "unknown name 'C'"),
    ({"constraints": ["device.thread > A"]}, "Space.constraints[0]", "mean 'device.threads'?"),
    ({"constraints": ["A > 0", "A % 2"]}, "Space.constraints[1]", "is a number; compare it"),
    ({"let": {"A": 1}}, 'Space.let["A"]', "a parameter has this name already"),
    ({"constraints": ["A > 9"]}, "Space.constraints[0]", "no configuration satisfies A > 9"),
    (
        {"constraints": ["A > B", "B > A"]},
        "Space.constraints[1]",
        "`A > B` (Space.constraints[0]) and `B > A` (Space.constraints[1])",
    ),
    (
        {"parameters": {"A": values([1, 2], when="A > 1")}},
        'Space.parameters["A"].when',
        "'when' depends on itself",
    ),
]


@pytest.mark.parametrize(("given", "place", "words"), UNBINDABLE)
def test_mistakes_that_show_when_binding_are_named_too(
    given: dict[str, Any], place: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.cpp").touch()
    made = space(**given, root=tmp_path)
    written = load_space(materialize(made, tmp_path / "out"))
    for document in (made.document, written):
        error = mistake(lambda document=document: bind(document, [{"n": 64}], DEVICE).size())
        assert error.place == place
        assert words in error.message


def test_mistakes_that_show_on_a_device_are_named_too(tmp_path: Path) -> None:
    kernel = CppKernel(source_text="// none", entry="f", arguments=["q", "nothing"])
    shape = {"batch": 1, "heads": 1, "seq_len": 16, "head_dim": 32}

    def load(**given: Any) -> object:
        common = {"problem": "attention", "shapes": [shape], "parameters": {"A": [1]}}
        return load_setup(materialize(Space(**{**common, **given}), tmp_path), "cpu")

    assert mistake(lambda: load(kernel=kernel)).place == "CppKernel.arguments[1]"
    shapes = [shape, {**shape, "heads": "many"}]
    assert mistake(lambda: load(kernel=kernel, shapes=shapes)).place == 'Space.shapes[1]["heads"]'
    assert mistake(lambda: load(kernel=kernel, dtype="float8")).place == "Space.dtype"
    assert mistake(lambda: load(kernel=kernel, problem="atention")).place == "Space.problem"
    options = CppKernel(source_text="// none", entry="f", options=["-fplugin=x"])
    assert mistake(lambda: load(kernel=options)).place == "CppKernel"


def test_a_space_that_is_saved_by_hand_is_told_of_by_lines(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(space().to_yaml().replace("A: [1, 2]", "A: [1, 1]"))
    with pytest.raises(SpaceError, match=r"space\.yaml:\d+:\d+: duplicate value 1"):
        Space.from_yaml(file)


def test_the_head_of_these_tests_is_that_of_the_files() -> None:
    assert parse_space(HEAD + BESIDE).name == space().document.name


ANYTHING = st.recursive(
    st.one_of(
        st.sampled_from(
            [None, True, 0, -1, 2.5, "n", "A > 1", "", "\0", b"x", 10**20, object, {1}]
        ),
        st.builds(object),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.tuples(inner),
        st.dictionaries(st.sampled_from(["A", "n", "expr", "range", "grid", 3]), inner, max_size=2),
        st.builds(ints, inner, inner),
        st.builds(Launch, inner, inner),
        st.builds(Argument, inner, inner),
        st.builds(Constraint, inner, inner),
    ),
    max_leaves=4,
)


def fields_of(kind: type, *left_out: str) -> st.SearchStrategy[dict[str, Any]]:
    names = [field.name for field in dataclasses.fields(kind) if field.name not in left_out]
    return st.dictionaries(st.sampled_from(names), ANYTHING, max_size=2)


@settings(derandomize=True, max_examples=200)
@given(fields_of(Space, "problem"), fields_of(CppKernel))
def test_whatever_is_given_there_is_a_space_or_one_line(
    given_space: dict[str, Any], given_kernel: dict[str, Any]
) -> None:
    good = {"source": "k.cpp", "entry": "f", "name": "k"}
    common: dict[str, Any] = {"parameters": {"A": [1, 2]}, "problem": "p", "shapes": [{"n": 1}]}
    message, place = "", "Space"
    try:
        Space(**{**common, "kernel": CppKernel(**{**good, **given_kernel}), **given_space})
    except SpaceError as error:
        message, place = str(error), error.place
    assert "\n" not in message
    assert place
