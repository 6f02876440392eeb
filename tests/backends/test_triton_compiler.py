"""Triton's compiler, which needs no GPU: figures, and one line for each mistake in a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.base.sources import fingerprint, read_sources
from evotune.backends.cuda.triton_compiler import TritonCompiler, parameter_bytes
from evotune.trial import Json, OutcomeKind
from tests.patience import PATIENCE_S

HEAD = "import triton\nimport triton.language as tl\n"
SCALE = """
@triton.jit
def scale(x, out, factor, count, BLOCK: tl.constexpr, MODE: tl.constexpr, MODE_TWICE: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + places, mask=places < count)
    if MODE == MODE_TWICE:
        values = values * 2
    tl.store(out + places, values * factor, mask=places < count)
"""
SIGNATURE = ("*float16", "*float16", "float32", "int32")
DEFINES = {"BLOCK": 64, "MODE": 2, "MODE_ONCE": 1, "MODE_TWICE": 2, "NUM_WARPS": 2}


def compiled(
    folder: Path,
    source: str = HEAD + SCALE,
    *,
    entry: str = "scale",
    signature: tuple[str, ...] = SIGNATURE,
    changed: str = "",
    **defines: int,
) -> dict[str, Json] | CompileFailure:
    folder.mkdir(exist_ok=True)
    (folder / "k.py").write_text(source)
    sha256 = fingerprint(read_sources(folder, "k.py"))
    if changed:
        (folder / "k.py").write_text(changed)
    given = tuple({**DEFINES, **defines}.items())
    job = CompileJob("triton", str(folder), "k.py", given, (), "sm_89", sha256, entry, signature)
    result = TritonCompiler().compile(job, folder / "code", PATIENCE_S)
    return result if isinstance(result, CompileFailure) else dict(result)


def reason(folder: Path, *arguments: str, **options: object) -> str:
    result = compiled(folder, *arguments, **options)  # type: ignore[arg-type]
    assert isinstance(result, CompileFailure)
    assert result.kind is OutcomeKind.COMPILE_ERROR
    assert "\n" not in result.reason
    return result.reason


def test_a_kernel_compiles_to_the_same_bytes_wherever_it_lies(tmp_path: Path) -> None:
    found = compiled(tmp_path / "here")
    assert isinstance(found, dict)
    assert found["entries"]["scale"]["registers"] == found["registers"] > 0
    assert found["spill_store_bytes"] == found["dynamic_shared_bytes"] == 0
    code = (tmp_path / "here" / "code").read_bytes()
    assert (code[:4], len(code)) == (b"\x7fELF", found["code_bytes"])
    assert compiled(tmp_path / "there") == found
    assert (tmp_path / "there" / "code").read_bytes() == code
    assert not list((Path.home() / ".triton").rglob("*scale*.cubin"))


def test_the_configuration_reaches_constexprs_and_the_compilers_own_options(
    tmp_path: Path,
) -> None:
    codes = set()
    for change in ({}, {"MODE": 1}, {"BLOCK": 256}, {"NUM_WARPS": 4}):
        assert isinstance(compiled(tmp_path, **change), dict), change
        codes.add((tmp_path / "code").read_bytes())
    assert len(codes) == 4
    assert "num_warps must be a power of 2" in reason(tmp_path, NUM_WARPS=3)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("tl.load(x", "tl.lode(x", "module 'triton.language' has no attribute 'lode'"),
        ("places < count", "places < limit", "limit is not defined"),
        ("* factor", "* [factor", "SyntaxError"),
        ("import triton\n", "import triton, nowhere_to_be_found\n", "No module named 'nowhere"),
        ("@triton.jit\n", "", "scale is not a plain @triton.jit function"),
        ("MODE_TWICE: tl", "MODE_THRICE: tl", "the constexpr MODE_THRICE is neither a parameter"),
        ("factor, count,", "factor,", "takes 3 arguments (x, out, factor)"),
        ("scale(x", "skale(x", "k.py has no function scale"),
        ("import triton\n", "import triton\nraise RuntimeError('not\\ntoday')\n", "not today"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_wrong(
    old: str, new: str, expected: str, tmp_path: Path
) -> None:
    assert old in HEAD + SCALE
    assert expected in reason(tmp_path, (HEAD + SCALE).replace(old, new))


@pytest.mark.parametrize("dtype", ["float64", "bool", "uint8", "int8", "int16", "int64"])
def test_tensors_of_other_types_compile(tmp_path: Path, dtype: str) -> None:
    source = (HEAD + SCALE).replace("values * factor", "(values * factor).to(x.dtype.element_ty)")
    found = compiled(tmp_path, source, signature=(f"*{dtype}", f"*{dtype}", "float32", "int32"))
    assert isinstance(found, dict), found.reason


def test_a_type_that_triton_lacks_is_named(tmp_path: Path) -> None:
    given = ("*complex64", "*float32", "float32", "int32")
    assert reason(tmp_path, signature=given).endswith("x is complex64, a type that Triton lacks")


def test_scratch_memory_that_only_tritons_launcher_allocates_is_refused(tmp_path: Path) -> None:
    source = HEAD + SCALE.replace(
        "    values = tl.load(x + places, mask=places < count)",
        "    rows = tl.make_tensor_descriptor(x, [count, 64], [64, 1], [8, 64])\n"
        "    values = tl.sum(rows.load([0, 0]), 0)",
    )
    (tmp_path / "k.py").write_text(source)
    sha256 = fingerprint(read_sources(tmp_path, "k.py"))
    given = tuple(DEFINES.items())
    job = CompileJob(
        "triton", str(tmp_path), "k.py", given, (), "sm_90a", sha256, "scale", SIGNATURE
    )
    result = TritonCompiler().compile(job, tmp_path / "code", PATIENCE_S)
    assert isinstance(result, CompileFailure)
    assert "the kernel needs scratch memory" in result.reason


def test_only_the_very_source_that_the_job_is_about_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    changed = f"open({str(mark)!r}, 'w')\n" + HEAD + SCALE
    assert reason(tmp_path, changed=changed) == "k.py changed while the run was going on"
    assert not mark.exists()


def test_parameter_sizes_are_read_from_the_entry_alone() -> None:
    ptx = ".func other(.param .u32 a)\n.visible .entry k(\n\t.param .u64 .ptr .global .align 1 p,\n\
\t.param .f32 q,\n\t.param .b64 r\n)\n.reqntid 128\n{ .param .u32 inner; }"
    assert parameter_bytes(ptx) == [8, 4, 8]
    assert parameter_bytes("") == []
