from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from counting import calls_made
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.errors import SpaceError
from evotune.space.bound import bind
from evotune.space.document import load_space, parse_space, with_dtype
from evotune.space.reading.schema import schema_text
from evotune.space.specs import SupportSpec
from evotune.trial import Value

from .spaces import HEAD, bind_text, parse_text

EXAMPLE = Path(__file__).with_name("attention.yaml")
SCHEMA = Path(__file__).parents[2] / "evotune" / "space" / "space.schema.json"
PARAMETERS = "parameters: {A: [1, 2], B: [1, 2]}\n"

# The body follows HEAD's 3 lines, so its first line is line 4.
BAD_FILES = [
    ("parameters: {a: [1]}", 4, 14, "expected a parameter name such as BLOCK_M, found 'a'"),
    ("parameters: {A: []}", 4, 17, "expected at least 1 item, found 0"),
    ("parameters: {}", 4, 13, "expected at least 1 key, found 0"),
    ("parameters: [A]", 4, 13, "expected a mapping, found a list"),
    ("parameters: {A: 4}", 4, 17, "expected a list, found 4"),
    ("parameters: {A: [1, 2, 1]}", 4, 24, "duplicate value 1"),
    ("parameters: {A: [1, true]}", 4, 21, "only integers, only booleans or only identifiers"),
    ("parameters: {A: [1, 2.5]}", 4, 21, "or an identifier, found 2.5"),
    ("parameters: {A: [a-b]}", 4, 18, "or an identifier, found 'a-b'"),
    ("parameters: {A: {}}", 4, 17, "expected one of values, range, pow2, choices, bool"),
    ("parameters: {A: {rnage: [1, 2]}}", 4, 18, "did you mean 'range'?"),
    ("parameters: {A: {range: [1, 2], pow2: [1, 2]}}", 4, 33, "exclude each other"),
    ("parameters: {A: {range: [4, 2]}}", 4, 25, "found 4 > 2"),
    ("parameters: {A: {range: [1, 4, 0]}}", 4, 25, "step of at least 1"),
    ("parameters: {A: {range: [1]}}", 4, 25, "at least 2 items"),
    ("parameters: {A: {range: [1, 100001]}}", 4, 25, "more than 100000 values"),
    ("parameters: {A: {pow2: [2, 12]}}", 4, 28, "12 is not a power of two"),
    ("parameters: {A: {choices: [x, true]}}", 4, 31, "found a boolean"),
    ("parameters: {A: {choices: [x, y], default: z}}", 4, 44, "z is not a value of A"),
    ("parameters: {A: {values: [1], otherwise: 2}}", 4, 31, "'otherwise' needs a 'when'"),
    (
        "parameters: {A: [1], B: {values: [1], when: 'A > 0', otherwise: x}}",
        4,
        65,
        "x has another type",
    ),
    ("parameters: {A: {pow2: }}", 4, 18, "'pow2' has no value"),
    ("parameters: {A: {values: [1, 2], when: ~}}", 4, 34, "'when' has no value"),
    (PARAMETERS + "constraints:", 5, 1, "'constraints' has no value"),
    (PARAMETERS + "budgte: {trials: 3}", 5, 1, "did you mean 'budget'?"),
    (PARAMETERS + "budget: {trials: 0}", 5, 18, "greater than or equal to 1"),
    (PARAMETERS + "budget: {trials: 1e2}", 5, 18, "expected an integer, found 100.0"),
    (PARAMETERS + "deterministic: no", 5, 16, "write false"),
    (PARAMETERS + "objective: per_shpe", 5, 12, "expected 'geomean_speedup'"),
    (PARAMETERS + "objective: [speedup]", 5, 12, "at least 2 items"),
    (PARAMETERS + "objective: [speedup, eror]", 5, 22, "did you mean 'error'?"),
    (
        PARAMETERS + "objective: [speedup, error]\nsearch: {strategy: evolution}",
        6,
        20,
        "evolution searches for speed alone",
    ),
    (
        PARAMETERS + "objective: [error, error]",
        5,
        12,
        "an objective is listed twice; list each one once",
    ),
    (PARAMETERS + "timeouts: {trial_s: 0}", 5, 21, "greater than 0"),
    (PARAMETERS + "default: {C: 1}", 5, 11, "unknown parameter 'C'"),
    (PARAMETERS + "default: {A: 3}", 5, 14, "3 is not a value of A"),
    (PARAMETERS + "try_first: [{A: 1}, {C: 1}]", 5, 22, "unknown parameter 'C'"),
    (PARAMETERS + "try_first: [{A: 1}, {A: 3}]", 5, 25, "3 is not a value of A"),
    (PARAMETERS + "constraints: A > B", 5, 14, "expected a list"),
    (PARAMETERS + "constraints: [A >]", 5, 18, "not an expression"),
    (PARAMETERS + "constraints: ['A > $']", 5, 20, "'$' is not allowed"),
    (PARAMETERS + "constraints: [max(A, B) > 1]", 5, 18, "quote an expression with commas"),
    (PARAMETERS + "constraints: [{exp: A > 1}]", 5, 16, "did you mean 'expr'?"),
    (PARAMETERS + "constraints: [{reason: r}]", 5, 15, "missing key 'expr'"),
    (PARAMETERS + "constraints: ['A.b > 1']", 5, 16, "only device.NAME has a dot"),
    (PARAMETERS + "constraints: ['open(A) > 1']", 5, 16, "'open' is not a function"),
    (PARAMETERS + "recorded: {file: x}", 2, 1, "a recorded space has no 'problem'"),
    (PARAMETERS + "let: {x: ''}", 5, 11, "found nothing"),
    ("", 1, 1, "missing key 'parameters'"),
    (PARAMETERS + "parameters: {A: [1]}", 5, 1, "duplicate key 'parameters', first used in line 4"),
    (PARAMETERS + "search: &x {seed: 0}", 5, 9, "anchors and aliases are not allowed"),
    (PARAMETERS + "search: *x", 5, 9, "anchors and aliases are not allowed"),
    (PARAMETERS + "name2: !!python/object:os.system x", 5, 8, "is not allowed"),
    (PARAMETERS + "description: !!int x", 5, 14, "does not fit its tag"),
    (PARAMETERS + "---\nname: b", 6, 1, "expected one YAML document"),
    (PARAMETERS + "search: {seed: 007}", 5, 16, "leading zeros; write 7"),
    (PARAMETERS + "search: {seed: 1234567890123456789}", 5, 16, "at most 18 digits"),
    (PARAMETERS + "budget: {minutes: .inf}", 5, 19, "expected a finite number"),
    (PARAMETERS + "budget: {minutes: 1e999}", 5, 19, "expected a finite number"),
    (PARAMETERS + "? [a, b]\n: 1", 5, 3, "expected a plain name as key"),
    (PARAMETERS + "64: 1", 5, 1, "expected text as key"),
    (PARAMETERS + "search: {seed: 0", 5, 17, "not valid YAML"),
    (PARAMETERS + 'description: "\\0"', 5, 14, "control characters"),
    (PARAMETERS + 'description: "\\UFFFFFFFF"', 0, 0, "not valid YAML"),
    (PARAMETERS + 'description: "\\ud800"', 5, 14, "control characters"),
    (PARAMETERS + '"a\\nb": 1', 5, 1, "unknown key 'a b'"),
    ("parameter: {A: [1]}", 4, 1, "unknown key 'parameter' in a space file; did you mean"),
    (PARAMETERS + "description: \x01", 5, 14, "control character U+0001"),
    (PARAMETERS + "let: " + "[" * 5000, 5, 25, "nested deeper than 20 levels"),
]


@pytest.mark.parametrize(("body", "line", "column", "words"), BAD_FILES)
def test_mistakes_are_reported_where_they_are(
    body: str, line: int, column: int, words: str
) -> None:
    with pytest.raises(SpaceError) as caught:
        parse_text(body)
    assert words in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("space.yaml:")


def test_a_name_of_two_words_is_told_what_a_name_may_hold() -> None:
    words = "expected letters, digits, '.', '_' and '-', found 'two words'"
    with pytest.raises(SpaceError, match=words):
        parse_space((HEAD + PARAMETERS).replace("small", "two words"), Path("space.yaml"))


@pytest.mark.parametrize(
    ("source", "language"),
    [("a.h", "cuda"), ("a.cuh", "cuda"), ("a.hpp", "cuda"), ("a.c", "cpp"), ("a.h", "cpp")],
)
def test_a_stated_language_takes_files_that_could_be_in_another(source: str, language: str) -> None:
    launches = "[{grid: [1], block: [1]}]"
    kernel = f"{{source: {source}, language: {language}, entry: f, launches: {launches}}}"
    document = parse_space(
        "name: small\nproblem: {name: a, shapes: [{n: 1}]}\n"
        f"kernels: {{k: {kernel}}}\nparameters: {{A: [1]}}\n"
    )
    assert document.kernels[0].language == language


BAD_KERNELS = [
    ("{source: a.rs, entry: f}", "expected a .cpp, .cc, .cxx, .cu or .py file, found 'a.rs'"),
    ("{source: S.txt, language: cpp, entry: f}", "expected a .cpp, .cc or .cxx file, found 'S.t"),
    ("{source: S.h, entry: f}", "file, found 'S.h'; state `language: cpp or cuda`"),
    (
        "{source: S.cuh, language: cpp, entry: f}",
        "expected a .cpp, .cc or .cxx file, found 'S.cuh'",
    ),
    ("{source: .cpp, language: cpp, entry: f}", "expected a .cpp, .cc or .cxx file, found '.cpp'"),
    ("{source: a.cpp, language: cuda, entry: f}", "expected a .cu file, found 'a.cpp'"),
    ("{source: a.cu, language: triton, entry: f}", "expected a .py file, found 'a.cu'"),
    ("{source: a.cu, entry: f}", "needs 'launches'"),
    ("{source: /etc/a.cpp, entry: f}", "expected a path under the root"),
    ("{source: ../a.cpp, entry: f}", "expected a path under the root"),
    ("{source: a.cpp}", "missing key 'entry'"),
    ("{source: a.cpp, entry: 'f g'}", "expected an identifier"),
    ("{source: a.cpp, entry: f, supports: {n: '>= x'}}", "expected a comparison"),
    ("{source: a.cpp, entry: f, supports: {n: '% 64'}}", "expected a comparison"),
    ("{source: a.cpp, entry: f, arguments: [{value: 1, type: int}]}", "'int32', 'int64'"),
    ("{source: a.cpp, entry: f, workspace: {w: {bytes: 1, init: zero}}}", "'poison' or"),
]


@pytest.mark.parametrize(("kernel", "words"), BAD_KERNELS)
def test_mistakes_in_kernels_are_reported(kernel: str, words: str) -> None:
    with pytest.raises(SpaceError, match=r"space\.yaml:3:") as caught:
        parse_space(
            "name: small\nproblem: {name: a, shapes: [{n: 1}]}\n"
            f"kernels: {{k: {kernel}}}\nparameters: {{A: [1]}}\n"
        )
    assert words in caught.value.message


UNBINDABLE = [
    ("constraints: [A > C]", 5, 19, "unknown name 'C'"),
    ("constraints: ['A > m']", 5, 20, "unknown name 'm'"),
    ("constraints: [device.thread > A]", 5, 15, "did you mean 'device.threads'?"),
    ("constraints: [A % 2]", 5, 15, "is a number; compare it"),
    ("constraints: [S + 1 > 2]", 5, 15, "expected a number, but 'S' is an identifier"),
    ("constraints: [S == xro]", 5, 20, "did you mean 'xor'?"),
    ("constraints: [S == 3]", 5, 15, "S is never 3"),
    ("let: {A: 1}", 5, 10, "a parameter has this name already"),
    ("let: {n: 1}", 5, 10, "a problem symbol has this name already"),
    ("let: {x: y, y: 'x + 1'}", 5, 10, "a let depends on itself: x -> y -> x"),
    ("let: {xor: 1}\nconstraints: [S == xor]", 6, 20, "a choice and a name"),
    ("constraints: [A > 9]", 5, 15, "no configuration satisfies A > 9"),
    ("constraints: [A > B, B > A]", 5, 22, "`A > B` (line 5) and `B > A` (line 5)"),
]


@pytest.mark.parametrize(("body", "line", "column", "words"), UNBINDABLE)
def test_mistakes_are_found_when_binding(body: str, line: int, column: int, words: str) -> None:
    with pytest.raises(SpaceError) as caught:
        bind_text("parameters: {A: [1, 2], B: [1, 2], S: [none, xor]}\n" + body).size()
    assert words in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)


def test_conditions_that_never_have_a_value_are_found_where_they_stand() -> None:
    text = (
        "parameters:\n  A: [1, 2]\n  B: {values: [1, 2], when: A > 1}\n"
        "  C: {values: [1, 2], when: 1 // (A - 1) > 0}\n"
        "  D: {values: [1, 2], when: 1 // (A - 2) > 0}\n"
        "constraints: [A == 1 or B == 2]\n"
    )
    with pytest.raises(SpaceError) as caught:
        bind_text(text).size()
    assert caught.value.message == (
        "no configuration gives 'when' a value: "
        "`1 // (A - 1) > 0` (line 7) and `1 // (A - 2) > 0` (line 8)"
    )
    assert (caught.value.line, caught.value.column) == (8, 29)


def test_when_must_not_depend_on_itself_or_on_the_shape() -> None:
    circular = "{values: [1, 2], when: '%s > 1'}"
    text = f"parameters: {{A: {circular % 'B'}, B: {circular % 'A'}}}"
    with pytest.raises(SpaceError, match="'when' depends on itself: A -> B -> A"):
        bind_text(text)
    text = "parameters: {A: {values: [1, 2], when: 'n > 5'}}"
    assert bind_text(text, [{"n": 6}]).size().valid == 2
    with pytest.raises(SpaceError, match=r"4:41: .*'n' differs between shapes"):
        bind_text(text, [{"n": 6}, {"n": 7}])


def test_launch_expressions_are_checked_when_binding() -> None:
    text = EXAMPLE.read_text().replace("batch * heads", "batch * head")
    document = parse_space(text)
    with pytest.raises(SpaceError, match=r"space.yaml:22:54: unknown name 'head'; did you mean"):
        bind(document, document.problem.environments(), {"shared_bytes_per_block": 99_000})


EDITS = st.lists(
    st.tuples(
        st.integers(0, 2300),
        st.integers(0, 12),
        st.sampled_from([*":-[]{}#&*!|>%@'\"\\ \n\t,?0e.~A<=(", "\\U9", "true", "\n---\n", "é"])
        | st.just(""),
    ),
    min_size=1,
    max_size=4,
)


@settings(derandomize=True, max_examples=150)
@given(EDITS)
def test_damaged_files_give_a_space_error_or_a_space(edits: list[tuple[int, int, str]]) -> None:
    text = EXAMPLE.read_text()
    for start, length, replacement in edits:
        text = text[:start] + replacement + text[start + length :]
    message = ""
    try:
        document = parse_space(text)
        bind(document, document.problem.environments(), {"shared_bytes_per_block": 9**5}).default()
    except SpaceError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize("line", ["- a\n", "# no\n"])
def test_a_file_twice_as_large_is_refused_with_twice_the_work(tmp_path: Path, line: str) -> None:
    file = tmp_path / "space.yaml"

    def refuse() -> None:
        with pytest.raises(SpaceError):
            load_space(file)

    calls = []
    for size in (1 << 14, 1 << 15):
        file.write_text("name: a\nconstraints:\n" + ("  " + line) * (size // (len(line) + 3)))
        calls.append(calls_made(refuse, 10_000_000))
    assert calls[1] < 2.2 * calls[0]


def test_unreadable_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="No such file"):
        load_space(tmp_path / "absent.yaml")
    with pytest.raises(SpaceError, match="found a directory"):
        load_space(tmp_path)
    file = tmp_path / "space.yaml"
    for content, words in [
        (b"", "the file is empty"),
        (b"# nothing\n", "the file is empty"),
        (b"- a\n", "expected a mapping at the top, found a list"),
        (b"name: a\nx: \xff", "2:4: expected UTF-8"),
        (b"a" * (1 << 20) + b"b", "larger than 1 MiB"),
        (b"name: \x00", "1:7: control character U\\+0000"),
    ]:
        file.write_bytes(content)
        with pytest.raises(SpaceError, match=words):
            load_space(file)


def test_plain_scalars_mean_what_yaml_1_2_says() -> None:
    document = parse_text(
        "parameters: {A: [yes, no, on, off], B: [0x10, 0o17, 3]}\nbudget: {minutes: 1e2}"
    )
    assert document.parameters[0].parameter.values == ("yes", "no", "on", "off")
    assert document.parameters[1].parameter.values == (16, 15, 3)
    assert document.options.minutes == 100.0


def test_example_is_read_completely() -> None:
    document = load_space(EXAMPLE)
    kernel = document.kernel()
    assert document.root == EXAMPLE.resolve().parents[2]
    assert (kernel.language, kernel.entry) == ("cuda", "attention_forward")
    assert kernel.unsupported({"head_dim": 64, "arch": 89}) is None
    assert kernel.unsupported({"head_dim": 96}) == (
        "kernel mma needs head_dim in (64, 128), found head_dim = 96"
    )
    assert kernel.unsupported({"arch": 75}) == "kernel mma needs sm_80 or later, found sm_75"
    environments = document.problem.environments()
    assert [env["causal"] for env in environments] == [False, True]
    space = bind(document, environments, {"shared_bytes_per_block": 101_376})
    start = space.default()
    assert (start["BLOCK_M"], start["WARPS"]) == (64, 4)
    launch = kernel.launches[0]
    assert space.evaluate(launch.grid[0], start, environments[0]) == 8
    assert space.evaluate(launch.shared_bytes, start, environments[0]) == 2 * 64 * (64 + 2 * 32)
    assert space.violations({**start, "BLOCK_M": 16}) == ["BLOCK_M % (16 * WARPS) == 0"]
    assert document.timeouts.compile_s == 30


def test_several_kernels_become_a_parameter() -> None:
    document = parse_space(
        "name: two\nproblem: {name: a, shapes: [{n: 1}]}\n"
        "kernels: {one: {source: a.cpp, entry: f}, two: {source: b.cpp, entry: f}}\n"
        "parameters: {A: {values: [1, 2], when: KERNEL == two}}\n"
    )
    space = bind(document, [{"n": 1}], {})
    assert [parameter.name for parameter in space.parameters] == ["KERNEL", "A"]
    assert [tuple(c.values()) for c in space.enumerate()] == [("one", 1), ("two", 1), ("two", 2)]


def test_recorded_space_has_only_its_recording(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("name: old\nrecorded: {file: times.json.gz, delay_ms: 2}\n")
    document = load_space(file)
    assert document.recorded.delay_ms == 2.0
    assert document.problem is None
    with pytest.raises(SpaceError, match="nothing to bind"):
        bind(document, [{}], {})


def test_a_recording_lies_under_the_root_of_its_space(tmp_path: Path) -> None:
    (tmp_path / "outside.json").write_text("{}")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "link.json").symlink_to(tmp_path / "outside.json")
    (inner / "loop.json").symlink_to(inner / "loop.json")
    file = inner / "space.yaml"
    for name in ("../outside.json", str(tmp_path / "outside.json"), "link.json"):
        file.write_text(f"name: old\nrecorded: {{file: {name}}}\n")
        with pytest.raises(SpaceError, match=r"yaml:2:18: .*outside the space's root"):
            load_space(file)
    file.write_text("name: old\nrecorded: {file: loop.json}\n")
    assert load_space(file).recorded is not None  # the recording's reader reports it


def test_committed_schema_is_current_and_accepts_the_example() -> None:
    assert SCHEMA.read_text() == schema_text(), "regenerate it with `evotune schema`"
    validator = jsonschema.Draft202012Validator(json.loads(schema_text()))
    validator.validate(yaml.safe_load(EXAMPLE.read_text()))
    bad = yaml.safe_load(HEAD + PARAMETERS + "budget: {trails: 3}")
    assert [error.json_path for error in validator.iter_errors(bad)] == ["$.budget"]


@pytest.mark.parametrize(
    ("text", "objectives", "strategy"),
    [
        ("", ("speedup",), "evolution"),
        ("objective: [error, speedup]", ("error", "speedup"), "nsga2"),
        ("objective: [speedup, error]\nsearch: {strategy: random}", ("speedup", "error"), "random"),
    ],
)
def test_several_objectives_are_searched_by_nsga2_unless_the_space_says_otherwise(
    text: str, objectives: tuple[str, ...], strategy: str
) -> None:
    document = parse_text(PARAMETERS + text)
    assert (document.options.objectives, document.options.strategy) == (objectives, strategy)


@pytest.mark.parametrize(
    ("known", "value", "holds"),
    [(0, 0.0, True), (30.0, 30, True), (1, True, False), (True, 1, False), ("a", "a", True)],
)
def test_a_kernel_supports_a_number_whatever_its_type(
    known: Value, value: Value, holds: bool
) -> None:
    assert SupportSpec("softcap", (known,), None).holds(value) is holds


def test_a_space_for_another_dtype_differs_in_that_alone() -> None:
    path = Path(__file__).parents[2] / "search_spaces" / "attention_mma.yaml"
    document = load_space(path)
    other = with_dtype(document, "bfloat16")
    assert other.problem is not None
    assert (other.problem.dtype, other.name, other.root) == (
        "bfloat16",
        document.name,
        document.root,
    )
    lines = zip(document.text.splitlines(), other.text.splitlines(), strict=True)
    assert [pair for pair in lines if pair[0] != pair[1]] == [
        ("  dtype: float16", "  dtype: bfloat16")
    ]
    assert with_dtype(document, "float16") is document
