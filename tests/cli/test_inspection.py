from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

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
extern "C" void attention_forward() {}
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """Five valid configurations of six; two of them do not compile."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "scale.cpp").write_text(KERNEL.replace("BROKEN", "2"))
    path = tmp_path / "scale.yaml"
    path.write_text(SPACE)
    return path


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


def test_check_compiles_a_sample_and_says_what_fails(invoke: Invoke, space: Path) -> None:
    result = invoke("check", space)
    assert result.exit_code == 0
    assert "3 of 5 compile" in result.output
    assert "#error this unroll is broken" in result.output


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
    assert " of 5 done, 2 failed: compile_error kernels/scale.cpp:2:2" in result.stderr


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
