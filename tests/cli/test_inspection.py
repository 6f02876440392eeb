from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.sweeps import swept

from .conftest import ROOT, Invoke

SPACE = """\
name: scale
problem:
  name: attention
  dtype: float32
  shapes: [{batch: 1, heads: 2, seq_len: 32, head_dim: 16}]
kernels:
  scalar:
    source: kernels/scale.cpp
    entry: attention_forward
    supports: {head_dim: [16, 32]}
    define: [head_dim, causal]
    arguments: [q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k]
parameters:
  UNROLL: [1, 2, 4]
  BLOCK_N: [16, 32]
constraints:
  - expr: UNROLL * BLOCK_N <= 64
    reason: keep it small
"""
KERNEL = """\
#if UNROLL == BROKEN
#error this unroll is broken
#endif
extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out,
                                  float scale, int, int, int, int, int) {}
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """Five valid configurations of six; two of them do not compile."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "scale.cpp").write_text(KERNEL.replace("BROKEN", "2"))
    path = tmp_path / "scale.yaml"
    path.write_text(SPACE)
    return path


def test_check_names_a_parameter_that_changes_nothing(invoke: Invoke, space: Path) -> None:
    said = "warning: BLOCK_N changes nothing: no kernel's source and no launch has the name"
    assert said in invoke("check", space, "--no-compile").stderr
    kernel = space.parent / "kernels" / "scale.cpp"
    kernel.write_text(f"{kernel.read_text()}// BLOCK_N\n")
    assert "warning" not in invoke("check", space, "--no-compile").stderr


def test_a_parameter_in_a_compiler_option_changes_something(invoke: Invoke, space: Path) -> None:
    text = space.read_text().replace("BLOCK_N: [16, 32]", "BLOCK_N: [2, 3]")
    space.write_text(text.replace("    entry: ", '    options: ["-O{BLOCK_N}"]\n    entry: '))
    found = invoke("check", space, "--no-compile")
    assert (found.exit_code, "warning" in found.stderr) == (0, False)


def test_check_asks_for_the_alignment_where_queries_are_fewer_than_keys(
    invoke: Invoke, space: Path
) -> None:
    def said(sizes: str, variant: str) -> str:
        text = SPACE.replace("seq_len: 32", sizes).replace("kernels:", f"  {variant}\nkernels:", 1)
        text = text.replace("define: [", "define: [bottom_right, ")
        space.write_text(text)
        result = invoke("check", space, "--no-compile")
        assert result.exit_code == 0
        return result.stderr

    late, causal = "seq_len_q: 4, seq_len_k: 32", "variants: [{causal: true}]"
    note = f"note: {space}:5:12: (1,2,4x32,16) causal: the last key of query i is key i"
    assert note in said(late, causal)
    assert "for i + 28, as chunked prefill" in said(late, causal)
    later = f"{causal}\n  held_out: [{{batch: 1, heads: 2, {late}, head_dim: 16}}]"
    assert f"note: {space}:7:14: (1,2,4x32,16) causal" in said("seq_len: 32", later)
    assert "note" not in said("seq_len: 32", causal)
    assert "note" not in said(late, "variants: [{causal: false}]")
    assert "note" not in said(late, "variants: [{causal: true, alignment: bottom_right}]")
    assert "note" not in said(late, "variants: [{causal: true, alignment: top_left}]")


def test_check_tells_the_size_the_constraints_and_the_kernels(invoke: Invoke, space: Path) -> None:
    result = invoke("check", space, "--no-compile")
    assert result.exit_code == 0
    rows = {
        " ".join(line.split()).split(" ")[0]: " ".join(line.split())
        for line in result.output.splitlines()
    }
    assert rows["cartesian"] == "cartesian 6"
    assert rows["valid"] == "valid share 83.333%"
    assert rows["scalar"] == "scalar scale.cpp cpp head_dim in (16, 32)"
    assert "UNROLL * BLOCK_N <= 64 1 1 keep it small" in " ".join(result.output.split())


def test_check_says_which_constraints_there_was_no_time_to_count(
    invoke: Invoke, space: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evotune.space.bound.SHOWN_S", -1.0)
    result = invoke("check", space, "--no-compile")
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    assert "UNROLL * BLOCK_N <= 64 ? ? ? keep it small" in words
    assert "?: not counted within 10 s" in words
    assert "valid 5" in words


def test_check_says_where_a_constraint_has_no_value(invoke: Invoke, space: Path) -> None:
    large = "(2 ** UNROLL) ** (2 * BLOCK_N) > 0"
    space.write_text(space.read_text().replace("UNROLL * BLOCK_N <= 64", large))
    result = invoke("check", space, "--no-compile")
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    assert "removes alone without a value removes last" in words
    assert f"{large} 5 5 5 keep it small" in words
    large = "2 ** 64 > UNROLL"
    space.write_text(SPACE.replace("UNROLL * BLOCK_N <= 64", large))
    result = invoke("check", space, "--no-compile")
    assert result.exit_code == 2
    assert f"scale.yaml:17:11: the result is 2**63 or more in `{large}`" in result.stderr


@pytest.mark.parametrize("command", swept(("check --no-compile", "run", "compile"), "run".__eq__))
def test_check_and_run_answer_for_a_space_in_which_nothing_is_found(
    invoke: Invoke, space: Path, command: str
) -> None:
    names = "".join(f"  P{i}: {{range: [1, 32]}}\n" for i in range(12))
    sums = [
        " + ".join(f"{1 + (i * k) % 9} * P{i} * P{11 - i}" for i in range(12)) for k in range(1, 6)
    ]
    constraints = "".join(f"  - {text} == {20000 + 17 * k}\n" for k, text in enumerate(sums))
    before = SPACE.partition("parameters:")[0]
    space.write_text(f"{before}parameters:\n{names}constraints:\n{constraints}")
    result = invoke(*command.split(), space, "--device", "cpu")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "scale.yaml:31:5: found no configuration in 4,000,000,000 steps; const" in line


def test_check_compiles_a_sample_and_says_what_fails(invoke: Invoke, space: Path) -> None:
    result = invoke("check", space)
    assert result.exit_code == 0
    assert "3 of 5 compile" in result.output
    assert "#error this unroll is broken" in result.output


def test_a_parameter_that_a_header_defines_again_is_told(invoke: Invoke, space: Path) -> None:
    space.write_text(SPACE.replace("UNROLL", "CHAR_BIT"))
    kernel = space.parent / "kernels" / "scale.cpp"
    kernel.write_text("#include <climits>\n" + KERNEL.replace("UNROLL", "CHAR_BIT"))
    result = invoke("check", space)
    assert result.exit_code == 1
    words = "CHAR_BIT: a header or the source gives this name another value; rename the parameter"
    assert words in " ".join(result.output.split())
    compiled = invoke("compile", space, "--format", "jsonl")
    assert compiled.exit_code == 1
    rows = [json.loads(line) for line in compiled.stdout.splitlines()]
    assert {(row["outcome"], row["reason"]) for row in rows} == {("compile_error", words)}


def test_a_mistake_in_the_file_is_reported_with_its_place(invoke: Invoke, space: Path) -> None:
    space.write_text(SPACE.replace("UNROLL: [1, 2, 4]", "UNROLL: 7"))
    result = invoke("check", space)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {space}:14:11: ")
    assert result.stderr.count("\n") == 1


def test_check_finds_what_cannot_be_tried_first(invoke: Invoke, space: Path) -> None:
    space.write_text(f"{SPACE}try_first:\n  - {{UNROLL: 4}}\n  - {{UNROLL: 4, BLOCK_N: 32}}\n")
    result = invoke("check", space)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {space}:21:5: no valid configuration has these values")
    assert "keep it small" in result.stderr
    assert result.stderr.count("\n") == 1


def test_compile_ends_with_1_when_one_does_not_compile(invoke: Invoke, space: Path) -> None:
    result = invoke("compile", space, "--all")
    assert result.exit_code == 1
    assert "3 of 5 compile" in result.stdout
    assert "compile_error" in result.stdout
    assert " of 5 done, 1 failed: compile_error kernels/scale.cpp:2:2" in result.stderr
    assert result.stderr.count("kernels/scale.cpp:2:2") == 1  # both fail for the same reason


def test_values_that_all_rows_share_stand_below_the_table(invoke: Invoke, space: Path) -> None:
    space.write_text(SPACE.replace("BLOCK_N: [16, 32]", "BLOCK_N: [16]"))
    table, _, below = invoke("compile", space, "--all").stdout.partition("in all of them: ")
    assert below.startswith("BLOCK_N=16\n")
    assert "UNROLL=4" in table
    assert "BLOCK_N" not in table


def test_a_kernel_that_takes_fewer_arguments_is_told(invoke: Invoke, space: Path) -> None:
    kernel = space.parent / "kernels" / "scale.cpp"
    kernel.write_text(KERNEL.replace("BROKEN", "99").replace(", int) {}", ") {}"))
    result = invoke("check", space)
    assert "attention_forward takes 9 arguments, the space gives 10" in result.stdout
    assert "0 of 5 compile" in result.stdout
    assert result.exit_code == 1


def test_compile_ends_with_0_when_all_do_and_tells_the_cache(invoke: Invoke, space: Path) -> None:
    kernel = space.parent / "kernels" / "scale.cpp"
    kernel.write_text(KERNEL.replace("BROKEN", "99"))
    rows = json.loads(invoke("compile", space, "--sample", "2", "--format", "json").stdout)
    assert [row["outcome"] for row in rows] == ["ok", "ok"]
    assert rows[0]["resources"]["code_bytes"] > 0
    again = invoke("compile", space, "--sample", "2", "-q")
    assert again.exit_code == 0
    assert "2 of 2 compile, 2 from the cache" in again.stdout
    assert again.stderr == ""


def test_the_schema_describes_the_shipped_spaces(invoke: Invoke) -> None:
    schema = json.loads(invoke("schema").output)
    jsonschema.validators.validator_for(schema).check_schema(schema)
    assert "parameters" in schema["properties"]


def test_a_shipped_space_is_known_by_name(invoke: Invoke) -> None:
    result = invoke("check", "attention_scalar_cpu", "--no-compile")
    assert result.exit_code == 0
    assert str(ROOT / "search_spaces" / "attention_scalar_cpu.yaml") in result.output


def test_an_unknown_strategy_is_a_mistake_in_the_space(invoke: Invoke, space: Path) -> None:
    space.write_text(SPACE + "search: {strategy: evolutoin}\n")
    result = invoke("check", space, "--no-compile")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "scale.yaml:19:9: unknown search strategy 'evolutoin'" in result.stderr
    assert "did you mean 'evolution'" in result.stderr


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [("sdpa:bset", "sdpa:best"), ("sdpa:fash", "sdpa:flash"), ("flashinfr", "flashinfer"),
     ("librry:best", "library:best")],
)  # fmt: skip
def test_a_misspelt_baseline_is_a_mistake_in_the_space(
    invoke: Invoke, space: Path, wrong: str, hint: str
) -> None:
    space.write_text(f"{SPACE}baseline: {wrong}\n")
    result = invoke("check", space, "--no-compile")
    assert (result.exit_code, result.stdout) == (2, "")
    (text,) = result.stderr.splitlines()
    place = f"scale.yaml:{1 + SPACE.count(chr(10))}:11: "
    assert text.endswith(f"{place}unknown baseline '{wrong}'; did you mean '{hint}'?")


@pytest.mark.parametrize("name", ["fa4", "library:best", "best", "sdpa:cudnn", "unfused"])
def test_a_baseline_that_is_not_on_this_machine_is_no_mistake(
    invoke: Invoke, space: Path, name: str
) -> None:
    space.write_text(f"{SPACE}baseline: {name}\n")
    assert invoke("check", space, "--no-compile").exit_code == 0


def test_all_of_a_space_that_would_take_weeks_is_refused(invoke: Invoke, space: Path) -> None:
    many = "".join(f"  P{i}: {{range: [1, 100]}}\n" for i in range(4))
    space.write_text(SPACE.replace("  UNROLL:", f"{many}  UNROLL:"))
    result = invoke("compile", space, "--all")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--all would compile 500,000,000 configurations" in result.stderr
    assert "--sample N compiles N of them" in result.stderr


@pytest.mark.parametrize("variable", ["EVOTUNE_CACHE_DIR", "HOME"])
def test_a_cache_that_cannot_be_written_is_named_with_the_remedy(
    invoke: Invoke, space: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("EVOTUNE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "/dev/null/nowhere")
    result = invoke("compile", space, "--sample", 1)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "cannot write into the cache /dev/null/nowhere" in result.stderr
    assert "set EVOTUNE_CACHE_DIR to a folder that you may write into" in result.stderr
