"""The compiler finds a function whose parameters are not the arguments that the space gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.trial import Json, OutcomeKind
from tests.patience import PATIENCE_S

SIGNATURE = ("pointer", "pointer", "float32", "int32")
RIGHT = {
    "as given": "const float *x, float *out, float factor, int count",
    "const and restrict": "float *__restrict__ x, void *const out, const float f, const int n",
    "an enumeration, references": "const float (&x)[8], float &out, float factor, mode count",
    "unsigned": "unsigned char *x, half_like *out, float factor, unsigned count",
}
WRONG = {
    "const float *x, float *out, float factor": "f takes 3 arguments, the space gives 4",
    "float *x": "f takes 1 argument, the space gives 4",
    "": "f takes 0 arguments, the space gives 4",
    "float *x, float *out, float f, int n, int m": "f takes 5 arguments, the space gives 4",
    "float *x, float f, float *out, int n": "argument 2 of f is a float, the space gives a pointer",
    "float *x, float *out, int n, float f": "argument 3 of f is an integer, the space gives a floa",
    "float *x, float *out, double f, int n": "argument 3 of f is a double, the space gives a float",
    "float *x, half_like out, float f, int n": "argument 2 of f is an object, the space gives a po",
}
SOURCE = """\
#define N 3
#define T float
#define value 7
enum mode { first };
struct half_like { short bits; };
extern "C" __global__ void f(PARAMETERS) {}
"""


def _compile(folder: Path, language: str, text: str, **job: Json) -> Json | CompileFailure:
    name = "k.cpp" if language == "cpp" else "k.cu"
    if language == "cpp":
        text = text.replace("__global__ ", "").replace("__device__ ", "")
    (folder / name).write_text(text)
    compiler = CpuCompiler() if language == "cpp" else NvrtcCompiler()
    arch = "native" if language == "cpp" else "sm_89"
    given = {"signature": SIGNATURE, "entries": ("f",), **job}
    made = CompileJob(language, str(folder), name, (("BLOCK", 4),), (), arch, "", **given)
    return compiler.compile(made, folder / "k.bin", PATIENCE_S)


@pytest.fixture(params=["cpp", "cuda"])
def language(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda":
        pytest.importorskip("cupy")
    return str(request.param)


@pytest.mark.parametrize("parameters", RIGHT)
def test_what_fits_compiles(tmp_path: Path, language: str, parameters: str) -> None:
    made = _compile(tmp_path, language, SOURCE.replace("PARAMETERS", RIGHT[parameters]))
    assert not isinstance(made, CompileFailure), made


@pytest.mark.parametrize("parameters", WRONG)
def test_what_does_not_fit_is_one_line(tmp_path: Path, language: str, parameters: str) -> None:
    failure = _compile(tmp_path, language, SOURCE.replace("PARAMETERS", parameters))
    assert isinstance(failure, CompileFailure)
    assert failure.kind is OutcomeKind.COMPILE_ERROR
    assert failure.reason.startswith(WRONG[parameters])


def test_a_gpu_s_integer_has_the_size_that_is_passed(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    text = SOURCE.replace("PARAMETERS", "float *x, float *out, float f, long long n")
    failure = _compile(tmp_path, "cuda", text)
    assert isinstance(failure, CompileFailure)
    assert failure.reason == "argument 4 of f has another size than an int32, which the space gives"
    signature = (*SIGNATURE[:3], "int64")
    assert not isinstance(_compile(tmp_path, "cuda", text, signature=signature), CompileFailure)


def test_every_function_that_is_launched_is_looked_at(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    text = SOURCE.replace("PARAMETERS", RIGHT["as given"])
    text += 'extern "C" __global__ void merge(float *x) {}\n'
    failure = _compile(tmp_path, "cuda", text, entries=("f", "merge"))
    assert isinstance(failure, CompileFailure)
    assert failure.reason == "merge takes 1 argument, the space gives 4"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", "{ nowhere(); }"),
        ("{}", "{"),
        ('extern "C"', 'static_assert(N == 4, "no four"); extern "C"'),
    ],
)
def test_a_mistake_of_another_kind_is_told_as_without_the_check(
    tmp_path: Path, language: str, before: str, after: str
) -> None:
    text = SOURCE.replace("PARAMETERS", RIGHT["as given"]).replace(before, after)
    checked = _compile(tmp_path, language, text)
    unchecked = _compile(tmp_path, language, text, entries=())
    assert isinstance(checked, CompileFailure)
    assert isinstance(unchecked, CompileFailure)
    assert checked.reason == unchecked.reason
    assert "arguments" not in checked.log


@pytest.mark.parametrize(
    "text",
    [
        "namespace mine {\n%s}",  # the compiler knows it by another name, the loader by this one
        "%s__device__ void f(short) {}",  # the check cannot know which of two is meant
    ],
)
def test_a_function_that_the_check_cannot_name_is_let_pass(
    tmp_path: Path, language: str, text: str
) -> None:
    source = SOURCE.replace("PARAMETERS", RIGHT["as given"])
    made = _compile(tmp_path, language, text % source)
    assert not isinstance(made, CompileFailure), made


@pytest.mark.parametrize(("before", "after"), [(" f(", " g("), ('extern "C" ', "")])
def test_a_function_that_is_not_there_is_told_without_loading_it(
    tmp_path: Path, before: str, after: str
) -> None:
    text = SOURCE.replace("PARAMETERS", RIGHT["as given"]).replace(before, after)
    failure = _compile(tmp_path, "cpp", text)
    assert isinstance(failure, CompileFailure)
    assert failure.reason == 'k.cpp has no function f; it needs extern "C"'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SOURCE.replace(" f(", " g("), "k.cu has no kernel f, it has g; "),
        (SOURCE.replace('extern "C" ', ""), "k.cu has no kernel f, it has _Z1f"),
        (SOURCE.replace("__global__", "__device__"), "k.cu has no kernel f; "),
    ],
)
def test_a_kernel_that_is_not_there_is_told_without_a_gpu(
    tmp_path: Path, text: str, reason: str
) -> None:
    pytest.importorskip("cupy")
    failure = _compile(tmp_path, "cuda", text.replace("PARAMETERS", RIGHT["as given"]))
    assert isinstance(failure, CompileFailure)
    assert failure.kind is OutcomeKind.COMPILE_ERROR
    assert failure.reason.startswith(reason)
    assert failure.reason.endswith('; it needs extern "C" and __global__')


def test_the_check_leaves_the_machine_code_as_it_is(tmp_path: Path, language: str) -> None:
    text = SOURCE.replace("PARAMETERS", RIGHT["as given"])
    text = text.replace("{}", "{ for (int i = 0; i < count; ++i) out[i] = factor * x[i]; }")
    codes = set()
    for entries in (("f",), ()):
        made = _compile(tmp_path, language, text, entries=entries)
        assert not isinstance(made, CompileFailure), made
        codes.add((tmp_path / "k.bin").read_bytes())
    assert len(codes) == 1
