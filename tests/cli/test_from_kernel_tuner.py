"""`evotune init --from-kernel-tuner` runs scripts as Kernel Tuner's users write them, and brings in
what they tune. Where a space cannot have it, or the script goes wrong, it prints one line and
writes nothing."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

from evotune.errors import UsageError
from evotune.extras import Imported, importer
from evotune.extras.kernel_tuner import importing
from evotune.space.document import SpaceDocument, parse_space
from tests.patience import PATIENCE_S

from .conftest import Invoke

SCALE = """
__global__ void scale(float *y, const float *x, float a, int n) {
    int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""
SIMPLE = '''
import numpy as np
from kernel_tuner import tune_kernel

source = """
__global__ void scale(float *y, const float *x, float a, int n) {
    int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""
n = 5000
x = np.random.randn(n).astype(np.float32)
y = np.zeros_like(x)
a = np.float32(2.5)
args = [y, x, a, np.int32(n)]
params = dict()
params["block_size_x"] = [64, 128, 256]
answer = [a * x, None, None, None]

tune_kernel("scale", source, n, args, params, answer=answer)
'''
BLUR = """\
#define image_width 64
#ifndef taps
#define taps 3
#endif
#ifndef tile
#define tile 1
#endif
#include <cuda_fp16.h>
#include "step.h"
__constant__ float c_weights[9];

__global__ void blur(float *out, const float *in) {
    int first = (blockIdx.x * block_size_x + threadIdx.x) * tile;
    for (int i = first; i < first + tile && i < image_width; ++i) {
        float sum = 0.0f;
        for (int k = 0; k < taps; ++k) sum = STEP(sum, in[i + k], c_weights[k]);
        out[i] = sum / grid_size_x * grid_size_x;
    }
}
"""
BLURRING = """
import numpy
import kernel_tuner as kt
from collections import OrderedDict


def tune():
    with open("blur.cu", "r") as f:
        source = f.read()
    problem_size = (64, 1)
    tunables = OrderedDict([("taps", [2 * i + 1 for i in range(1, 4)])])
    tunables["block_size_x"] = [2**i for i in range(4, 12)]
    tunables["tile"] = list(range(1, 5))
    largest = max(tunables["taps"])
    size = numpy.prod(problem_size)
    out = numpy.zeros(size).astype(numpy.float32)
    image = numpy.random.randn(size + largest - 1).astype(numpy.float32)
    weights = numpy.random.rand(largest).astype("float32")
    fits = lambda p: p["block_size_x"] * p["tile"] < 2048
    restrict = ["tile == 1 or block_size_x % 32 == 0", fits]
    smem = dict(size=lambda p: p["tile"] * 4)
    return kt.tune_kernel(
        "blur",
        source,
        problem_size,
        [out, image],
        tunables,
        grid_div_x=["block_size_x", "tile"],
        restrictions=restrict,
        cmem_args={"c_weights": weights},
        smem_args=smem,
        compiler_options=["-use_fast_math", "-arch=sm_70"],
    )


if __name__ == "__main__":
    tune()
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts lie in the working folder, so that nobody is asked about them."""
    monkeypatch.chdir(tmp_path)


def brought_in(
    folder: Path, script: str, *outputs: str, kernel: str | None = None, args: tuple[str, ...] = ()
) -> Imported:
    path = folder / "tune.py"
    path.write_text(script)
    return importer("kernel_tuner").import_script(
        path, name=None, kernel=kernel, outputs=outputs, arguments=args
    )


def constraints(made: Imported) -> list[str]:
    return [spec.expression.text for spec in space_of(made).constraints]


def tuned(call: str, more: str = "") -> str:
    """SIMPLE with further arguments of tune_kernel."""
    return SIMPLE.replace("answer=answer)", f"answer=answer, {call})").replace(
        "\ntune_kernel(", f"\n{more}\ntune_kernel("
    )


def space_of(made: Imported) -> SpaceDocument:
    return parse_space(made.files["space.yaml"].decode(), Path("space.yaml"))


def blurring(folder: Path, old: str = "", new: str = "") -> Imported:
    assert old in BLURRING
    (folder / "blur.cu").write_text(BLUR)
    (folder / "step.h").write_text("#define STEP(s, a, b) (s) + (a) * (b)\n")
    return brought_in(folder, BLURRING.replace(old, new))


def value_of(text: str, name: str) -> object:
    """The value of a class attribute in the text of problem.py."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(name)


def test_a_script_with_an_answer_needs_nothing_more(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(SIMPLE)
    made = invoke("init", "--from-kernel-tuner", "tune.py")
    assert made.exit_code == 0, made.stderr
    folder, check = made.stdout.splitlines()
    assert folder == "cd scale"
    assert check.endswith("evotune check space.yaml --device h200")
    folder = tmp_path / "scale"
    assert sorted(path.name for path in folder.iterdir()) == [
        *("problem.py", "scale.cu", "space.schema.json", "space.yaml", "wrapper.cu"),
    ]
    assert (folder / "scale.cu").read_text() == SCALE
    assert '"y": 2.5 * x,' in (folder / "problem.py").read_text()
    (kernel,) = space_of(brought_in(tmp_path, SIMPLE)).kernels
    arguments = [
        spec.name or spec.value.text for spec in kernel.arguments if spec.value or spec.name
    ]
    assert arguments == ["y", "x", "2.5", "n"]
    assert [e.text for e in kernel.launches[0].grid] == ["ceil_div(n, BLOCK_SIZE_X)"]
    checked = invoke("check", "scale/space.yaml", "--device", "h200", "--no-compile")
    assert checked.exit_code == 0, checked.stderr


def test_the_kernel_compiles_as_it_is(invoke: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    made = blurring(tmp_path)
    for name, content in made.files.items():
        (tmp_path / "blur").mkdir(exist_ok=True)
        (tmp_path / "blur" / name).write_bytes(content)
    assert made.files["blur.cu"] == BLUR.encode()
    done = invoke("compile", "blur/space.yaml", "--device", "h200", "--sample", 2)
    assert done.exit_code == 0, done.stderr


def test_a_tunable_may_have_the_name_of_a_template_parameter(
    invoke: Invoke, tmp_path: Path
) -> None:
    """NVRTC's own header has `template <typename T>`: the space's parameter is T_."""
    script = SIMPLE.replace(
        'params["block_size_x"]', 'params["T"] = [1, 2]\nparams["block_size_x"]'
    )
    (tmp_path / "tune.py").write_text(script.replace("a * x[i];", "a * x[i] * T / T;"))
    assert invoke("init", "scale", "--from-kernel-tuner", "tune.py").exit_code == 0
    assert "T_: [1, 2]" in (tmp_path / "scale" / "space.yaml").read_text()
    made = invoke("compile", "scale/space.yaml", "--device", "l4", "--trust", "--all")
    assert made.exit_code == 0, made.output


def test_a_macro_that_the_source_overrides_does_not_compile(invoke: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    (tmp_path / "tune.py").write_text(SIMPLE.replace('"""\n__', '"""\n#define block_size_x 64\n__'))
    assert invoke("init", "mine", "--from-kernel-tuner", "tune.py").exit_code == 0
    done = invoke("compile", "mine/space.yaml", "--device", "h200", "--sample", 3)
    assert "the source gives block_size_x another value than the tuner" in done.stdout + done.stderr


def test_what_the_script_says_is_in_the_space(tmp_path: Path) -> None:
    made = blurring(tmp_path)
    space = space_of(made)
    (kernel,) = space.kernels
    (launch,) = kernel.launches
    assert space.problem is not None
    assert space.problem.shapes == ({"problem_size_x": 64},)
    assert kernel.define == ("problem_size_x",)  # for grid_size_x
    assert [e.text for e in launch.grid] == ["ceil_div(problem_size_x, BLOCK_SIZE_X * TILE)"]
    assert ([e.text for e in launch.block], launch.shared_bytes.text) == (
        ["BLOCK_SIZE_X"],
        "TILE * 4",
    )
    assert kernel.options == ("--use_fast_math",)
    assert [(spec.symbol, spec.tensor) for spec in kernel.constant_memory] == [
        ("c_weights", "weights")
    ]
    assert {spec.name: tuple(spec.parameter.values) for spec in space.parameters} == {
        "TAPS": (7,),
        "BLOCK_SIZE_X": tuple(2**i for i in range(4, 12)),
        "TILE": (1, 2, 3, 4),
    }
    assert constraints(made) == [
        "TILE == 1 or BLOCK_SIZE_X % 32 == 0",
        "BLOCK_SIZE_X * TILE < 2048",
        "BLOCK_SIZE_X <= device.threads_per_block",
    ]
    assert made.notes[0].startswith("taps is fixed at 7, its largest value")
    assert "left out the compiler option '-arch=sm_70'" in made.notes[1]


def test_sizes_that_the_kernel_is_not_told_stay_as_they_are(tmp_path: Path) -> None:
    made = blurring(tmp_path)
    problem = made.files["problem.py"].decode()
    assert value_of(problem, "fixed") == ("problem_size_x",)
    assert '"out": (problem_size_x,)' in problem
    assert '"image": (70,),' in problem
    assert '"weights": (7,),' in problem
    told = brought_in(tmp_path, SIMPLE).files["problem.py"].decode()
    assert value_of(told, "sizes") == ("n",)
    assert "fixed" not in told


def test_shapes_follow_a_size_that_the_kernel_is_told(tmp_path: Path) -> None:
    script = SIMPLE.replace("np.random.randn(n)", "np.random.randn(n + 2)")
    script = script.replace("np.zeros_like(x)", "np.zeros(2 * n, np.float32)")
    problem = brought_in(tmp_path, script.replace("a * x", "x")).files["problem.py"].decode()
    assert '"x": (n + 2,)' in problem
    assert '"y": (2 * n,)' in problem
    assert "fixed" not in problem


def test_a_shape_that_follows_from_no_size_keeps_all_sizes(tmp_path: Path) -> None:
    script = SIMPLE.replace("np.random.randn(n)", "np.random.randn(n * n // 7)")
    problem = brought_in(tmp_path, script.replace("a * x", "x")).files["problem.py"].decode()
    assert value_of(problem, "fixed") == ("n",)


def test_without_an_answer_one_method_is_to_be_written(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(SIMPLE.replace("a * x, None", "np.sort(x), None"))
    made = invoke("init", "--from-kernel-tuner", "tune.py")
    assert made.exit_code == 0
    lines = (tmp_path / "scale" / "problem.py").read_text().splitlines()
    (line,) = (n for n, text in enumerate(lines, 1) if "NotImplementedError" in text)
    assert f"still to be written: compute, at scale/problem.py:{line}" in made.stderr
    checked = invoke("check", "scale/space.yaml", "--device", "h200", "--no-compile")
    assert checked.exit_code == 2
    assert f"problem.py:{line}: NotImplementedError: write here what" in checked.stderr


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("answer", "torch"),
    [
        ("np.maximum(x, 0)", "x.relu()"),
        ("-x", "-x"),
        ("x.astype(np.float64) ** 2", "x.square()"),
        ("np.exp(x) + 0 * n", "x.exp()"),
        ("x + 2", "x + 2.0"),
        ("np.cumsum(x)", None),
        ("np.zeros_like(x) + 3", None),  # a constant tells too little
        ("np.sum(x)", None),  # its shape differs from that of y
    ],
)
def test_answers_become_torch_where_a_simple_expression_has_their_values(
    answer: str, torch: str | None, tmp_path: Path
) -> None:
    made = brought_in(tmp_path, SIMPLE.replace("[a * x, None", f"[{answer}, None"))
    problem = made.files["problem.py"].decode()
    assert (f'"y": {torch},' in problem) == (torch is not None)
    assert (made.unwritten == 0) == (torch is not None)


def test_matrices_keep_their_shapes(tmp_path: Path) -> None:
    script = """
import numpy, kernel_tuner
m, k = 40, numpy.int32(30)
size = (m, 20)
A = numpy.random.random((m, k)).astype(numpy.float32)
B = numpy.random.randn(k * 20).astype(numpy.float32).reshape(k, 20)
C = numpy.empty([m, 20], dtype=numpy.float32)
code = "__global__ void product(float *c, float *a, float *b) { }"
reference = A @ B
kernel_tuner.tune_kernel(
    kernel_name="product", kernel_source=code, problem_size=size, arguments=[C, A, B],
    tune_params={"block_size_x": [8, 16], "block_size_y": [2, 3, 5], "inner": ["float", "double"]},
    grid_div_y="block_size_y * 2", answer=[reference, None, None],
)
"""
    made = brought_in(tmp_path, script)
    problem = made.files["problem.py"].decode()
    assert '"A": (problem_size_x, 30),' in problem
    assert '"C": A @ B,' in problem
    (launch,) = space_of(made).kernels[0].launches
    assert [e.text for e in launch.grid] == [
        *("ceil_div(problem_size_x, BLOCK_SIZE_X)", "ceil_div(problem_size_y, BLOCK_SIZE_Y * 2)"),
    ]
    assert "#if INNER == INNER_FLOAT\n#define inner float\n" in made.files["wrapper.cu"].decode()


def test_outputs_may_be_said(tmp_path: Path) -> None:
    script = SIMPLE.replace("np.zeros_like(x)", "np.copy(x)").replace("answer=answer", "")
    script = script.replace("answer = [", "ignored = [")
    made = brought_in(tmp_path, script)  # x is const, so y is the output
    assert '"y": (n,)' in made.files["problem.py"].decode().partition("outputs")[2]
    with pytest.raises(UsageError, match=r"writes \(y, x\); use --output NAME"):
        brought_in(tmp_path, script.replace("const ", ""))
    made = brought_in(tmp_path, script.replace("const ", ""), "x")
    assert '"x": (n,)' in made.files["problem.py"].decode().partition("outputs")[2]


def test_of_several_calls_the_first_is_taken_or_one_is_named(tmp_path: Path) -> None:
    wanted = (
        'results, env = tune_kernel("scale2", source.replace("scale", "scale2"), n, args, params)'
    )
    two = SIMPLE.replace("\ntune_kernel(", "\nfirst, env = tune_kernel(") + (
        f"json = min(first, key=lambda each: each['time'])\n{wanted}\n"
    )
    made = brought_in(tmp_path, two)
    assert made.name == "scale"
    assert "took the first call of tune_kernel(), at line 20" in made.notes[-1]
    assert brought_in(tmp_path, two, kernel="scale2").name == "scale2"
    with pytest.raises(UsageError, match="it tunes scale, scale2, not scal"):
        brought_in(tmp_path, two, kernel="scal")


def test_a_script_gets_its_arguments_and_its_folder(invoke: Invoke, tmp_path: Path) -> None:
    """It is run in its own folder, as `python script.py ARGS` there, beside its modules."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "mine.py").write_text("def half(n): return n // 2\n")
    (folder / "scale.cu").write_text(SCALE)
    head = "import argparse\nfrom mine import half\nparser = argparse.ArgumentParser()\n"
    head += "parser.add_argument('--count', type=int, required=True)\n"
    script = SIMPLE.replace("n = 5000", "n = half(parser.parse_args().count)")
    script = script.replace('"scale", source', '"scale", open("scale.cu").read()')
    (folder / "tune.py").write_text(head + script)
    asked = ("init", "--from-kernel-tuner", "theirs/tune.py")
    refused = invoke(*asked)
    assert refused.exit_code == 2
    assert "it ended itself (2) before tune_kernel() was called" in refused.stderr
    assert invoke(*asked, "--args", "--count '4000'").exit_code == 0
    assert "shapes: [{n: 2000}]" in (tmp_path / "scale" / "space.yaml").read_text()


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("restrictions", "written"),
    [
        ("lambda p: p['block_size_x'] * p['tile'] < 512 and p['tile'] != 3",
         ["BLOCK_SIZE_X * TILE < 512", "TILE != 3"]),
        ("[lambda block_size_x, tile: block_size_x % 128 == 0 or tile == 1]",
         ["BLOCK_SIZE_X % 128 == 0 or TILE == 1"]),
        ("fits", ["BLOCK_SIZE_X > 64", "TILE <= 2 or BLOCK_SIZE_X == 128"]),
        ("lambda p: bin(p['tile']).count('1') == 1", ["TILE in (1, 2, 4)"]),
        ("lambda p: int(p['tile'] * 1.5) + p['block_size_x'] <= 131",
         ["not BLOCK_SIZE_X == 128 or TILE in (1, 2)", "not BLOCK_SIZE_X == 256"]),
        ("['tile < 4', (MaxProdConstraint(256), ['block_size_x', 'tile'])]",
         ["TILE < 4", "BLOCK_SIZE_X * TILE <= 256"]),
        ("[FunctionConstraint(lambda x, t, w: x * t > 99), MinSumConstraint(70)]",
         ["BLOCK_SIZE_X * TILE > 99", "BLOCK_SIZE_X + TILE + WIDE >= 70"]),
        ("lambda p: True", []),
    ],
)  # fmt: skip
def test_restrictions_of_every_kind_become_constraints(
    restrictions: str, written: list[str], tmp_path: Path
) -> None:
    more = """
from constraint import FunctionConstraint, MaxProdConstraint, MinSumConstraint
params["tile"], params["wide"] = [1, 2, 3, 4], [0, 1]
def fits(p):
    if p["block_size_x"] <= 64:
        return False
    return p["block_size_x"] == 128 if p["tile"] > 2 else True
"""
    made = brought_in(tmp_path, tuned(f"restrictions={restrictions}", more))
    assert [each for each in constraints(made) if "device" not in each] == written


def test_a_function_of_too_many_combinations_must_be_an_expression(tmp_path: Path) -> None:
    more = "for name in 'abcdef': params[name] = list(range(1, 13))"
    plain = "lambda p: p['a'] * p['b'] * p['c'] <= p['d'] + p['e'] * p['f']"
    made = brought_in(tmp_path, tuned(f"restrictions={plain}", more))
    assert constraints(made) == ["A * B * C <= D + E * F"]
    counted = plain.replace("p['a']", "len('x' * p['a'])")
    with pytest.raises(UsageError, match="restriction 1 cannot be written: it has 2985984 comb"):
        brought_in(tmp_path, tuned(f"restrictions={counted}", more))


def test_launches_may_be_functions(tmp_path: Path) -> None:
    script = tuned(
        "grid_div_x=lambda p: p['block_size_x'] * (2 if p['tile'] > 2 else 1), "
        "smem_args={'size': lambda p: p['tile'] * 4}",
        "params['tile'] = [1, 2, 3, 4]",
    ).replace("source, n,", "source, lambda p: (n * p['tile'], 1),")
    (launch,) = space_of(brought_in(tmp_path, script)).kernels[0].launches
    assert [e.text for e in launch.grid] == [
        "ceil_div(5000 * TILE, BLOCK_SIZE_X * 2 if TILE > 2 else BLOCK_SIZE_X * 1)"
    ]
    assert launch.shared_bytes.text == "TILE * 4"


TEMPLATE = SIMPLE.replace(
    "__global__ void scale(float *y, const float *x, float a, int n)",
    "template <typename V, int threads>\n__global__ void __launch_bounds__(threads)\n"
    "scale(V *__restrict__ y, const V *x, V a, int n)",
).replace('"scale", source', '"scale<float, block_size_x>", source')
OVERLOADED = SIMPLE.replace(
    "__global__ void scale(",
    "__device__ float twice(float x) { return x + x; }\n__device__ int twice(int x) { return x; }\n"
    "__global__ void scale(double *y, const double *x, double a, int n) { y[0] = a * x[0]; }\n"
    "__global__ void scale(",
).replace("a * x[i]", "a * twice(x[i]) / 2")
GENERATED = SIMPLE.replace("block_size_x + threadIdx", "%s + threadIdx").replace(
    '"scale", source', '"scale", lambda p: source % p["block_size_x"]'
)
UNROLLED = SIMPLE.replace('"scale", source', '"scale", written').replace(
    "\ntune_kernel(",
    """
params["unroll"] = [1, 2, 4]
def written(p):
    step = "y[i] = a * x[i]; i += %s; if (i >= n) return;" % (p["block_size_x"] // p["unroll"])
    return source.replace("if (i < n)", "if (i >= n) return; " + step * p["unroll"])
tune_kernel(""",
)
JOINED = SIMPLE.replace('"scale", source', '"scale", ["scale.cu", "step.h"]').replace(
    "answer=answer", "answer=answer, compiler_options=['-Iheaders']"
)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "script",
    [
        TEMPLATE,
        TEMPLATE.replace("answer=answer", "answer=answer, defines={}").replace(
            "* block_size_x +", "* threads +"
        ),
        OVERLOADED,
        GENERATED,
        UNROLLED,
        JOINED,
        SIMPLE.replace("block_size_x + thread", "M + thread").replace(
            "answer=answer", "answer=answer, defines={'M': lambda p: p['block_size_x']}"
        ),
    ],
    ids=["template", "defines", "overloaded", "generated", "unrolled", "files", "macro"],
)
def test_sources_of_every_kind_compile(script: str, invoke: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "other.h").write_text("#define OTHER 1\n")
    (tmp_path / "step.h").write_text('#include "other.h"\n#define STEP OTHER\n')
    (tmp_path / "scale.cu").write_text('#include "step.h"\n' + SCALE.replace("x[i]", "STEP * x[i]"))
    (tmp_path / "tune.py").write_text(script)
    made = invoke("init", "scale", "--from-kernel-tuner", "tune.py")
    assert made.exit_code == 0, made.stderr
    done = invoke("compile", "scale/space.yaml", "--device", "l4", "--trust", "--all")
    assert done.exit_code == 0, done.output


def test_a_source_that_a_function_writes_has_the_names_of_tunables(tmp_path: Path) -> None:
    made = brought_in(tmp_path, GENERATED)
    assert made.files["scale.cu"].decode() == SCALE
    unrolled = brought_in(tmp_path, UNROLLED).files["scale.cu"].decode()
    assert unrolled.count("(block_size_x / 4)") == 4
    assert "#elif UNROLL == 4" in unrolled


@pytest.mark.soak
def test_integers_keep_their_range_and_their_order(invoke: Invoke, tmp_path: Path) -> None:
    script = SIMPLE.replace("const float *x,", "const float *x, const int *starts, const int *at,")
    script = script.replace(
        "args = [y, x,",
        "starts = np.sort(np.random.randint(5, 90, 40)).astype(np.int32)\n"
        "at = np.array([3, 0, 2], np.int32)\nargs = [y, x, starts, at,",
    ).replace("None, None, None]", "None, None, None, None, None]")
    (tmp_path / "tune.py").write_text(script)
    assert invoke("init", "scale", "--from-kernel-tuner", "tune.py").exit_code == 0
    problem = (tmp_path / "scale" / "problem.py").read_text()
    assert 'Tensor((40,), "int32", "indices")' in problem
    assert 'Tensor((3,), "int32", range(0, 4))' in problem
    checked = invoke("check", "scale/space.yaml", "--device", "h200", "--no-compile")
    assert checked.exit_code == 0, checked.stderr


def test_a_null_argument_and_a_tuple_of_arguments(tmp_path: Path) -> None:
    script = SIMPLE.replace("const float *x,", "const float *x, const float *bias,")
    script = script.replace("args = [y, x, a, np.int32(n)]", "args = (y, x, None, a, np.int32(n))")
    (kernel,) = space_of(brought_in(tmp_path, script.replace("[a * x,", "[a * x, None,"))).kernels
    assert kernel.arguments[2].value is not None
    assert kernel.arguments[2].value.text == "0"


def test_arrays_of_cupy_and_pycuda_are_numpys(tmp_path: Path) -> None:
    script = SIMPLE.replace("import numpy as np", "import numpy as np\nimport cupy as cp")
    script = script.replace("np.random.randn(n)", "cp.random.randn(n)").replace(
        "np.zeros_like(x)", "drv.pagelocked_empty(n, np.float32, mem_flags=flags)"
    )
    head = """
import pycuda.driver as drv
from kernel_tuner.observers import BenchmarkObserver
drv.init()
context = drv.Device(0).make_context()
flags = drv.host_alloc_flags.PORTABLE | drv.host_alloc_flags.DEVICEMAP
class Mine(BenchmarkObserver):
    def get_results(self): return {}
"""
    made = brought_in(tmp_path, head + script.replace("answer=answer", "observers=[Mine()]"))
    assert '"y": 2.5 * x' in made.files["problem.py"].decode()  # `answer` is not passed on
    assert "left out: observers" in made.notes


@pytest.mark.parametrize("pass_on", ["answer=[found[0], None, None, None]", "verify=print"])
def test_results_of_run_kernel_are_no_reference(pass_on: str, tmp_path: Path) -> None:
    """The kernel was not run: which arrays are outputs is known, what they hold is not."""
    script = SIMPLE.replace("answer=answer", pass_on).replace(
        "\ntune_kernel(",
        "\nfrom kernel_tuner import run_kernel\n"
        "found = run_kernel('scale', source, n, args, {})\ntune_kernel(",
    )
    made = brought_in(tmp_path, script.replace("np.zeros_like(x)", "np.ones_like(x)"))
    assert made.unwritten
    assert '"y"' in made.files["problem.py"].decode().partition("outputs")[2]


def test_what_is_computed_from_an_invented_result_changes_no_file(tmp_path: Path) -> None:
    (tmp_path / "kept.npy").write_bytes(b"mine")
    more = """
import os, kernel_tuner
found = kernel_tuner.run_kernel("scale", source, n, args, {})
np.save("kept.npy", found[0])
np.save("new.npy", found[0])
assert np.load("kept.npy").shape == (n,)
"""
    brought_in(tmp_path, tuned("atol=1e-3", more))
    assert (tmp_path / "kept.npy").read_bytes() == b"mine"
    assert not (tmp_path / "new.npy").exists()
    with pytest.raises(UsageError, match=r"it would change .*kept.npy after run_kernel"):
        brought_in(tmp_path, tuned("atol=1e-3", more + "os.remove('kept.npy')\n"))
    assert (tmp_path / "kept.npy").exists()


# Each mistake: the text that is replaced in the script, its replacement, words of the error line.
MISTAKES = {
    "no call": (
        'tune_kernel("scale"',
        '(lambda *a, **b: 0)("scale"',
        "tune.py: it ended without a call",
    ),
    "no Python": ("params = dict()", "params = dict(", ":16: not Python: '(' was never closed"),
    "raised": ("n = 5000", "n = 5000 / 0", ":11: ZeroDivisionError: division by zero"),
    "ended": ("n = 5000", "exit('no')", ":11: it ended itself (no) before tune_kernel()"),
    "killed": (
        *("n = 5000", "import os; os.kill(os.getpid(), 9)"),
        "the script's process died of SIGKILL before tune_kernel() was called",
    ),
    "no name": ('"scale"', "'a b'", "'a b' is no kernel's name"),
    "a generator": ('"scale", source', '"scale", lambda p: 3', "it returns a int"),
    "no file": ('"scale", source', '"scale", "scale.cu"', "cannot read source scale.cu: No such"),
    "an odd file": ('"scale", source', """"scale", 'a"b.cu'""", "cannot have; rename the file"),
    "outside": ('"scale", source', '"scale", "../scale.cu"', "lies outside the space's root"),
    "opencl": ("__global__", "__kernel", "the kernel is in OpenCL; evotune brings in CUDA"),
    "c": ("__global__", "extern", "the source has no __global__ function"),
    "a language": ("answer=answer", 'lang="HIP"', "the kernel is in HIP; evotune brings in CUDA"),
    "texture": ("answer=answer", "texmem_args={'t': x}", "texmem_args: textures are not"),
    "four": ("source, n", "source, (n,1,1,1)", "problem_size has 4 sizes"),
    "no size": ("source, n", "source, 0", "problem_size_x is 0; expected a whole number of at"),
    "a double": (".astype(np.float32)", "", "y has elements of float64; tensors of a"),
    "plain": ("np.int32(n)]", "n]", "argument 4 is a plain number; make it numpy.int32"),
    "count": (", np.int32(n)]", "]", "scale takes 4 arguments, the script gives 3"),
    "no inputs": ("args = [y, x, a", "args = [y, y, a", "the kernel reads no array that it does"),
    "empty": ('params["block_size_x"] =', "sizes =", "tune_params is empty; a space has"),
    "floats": ("[64, 128, 256]", "[0.5, 1.5]", "block_size_x has the value 0.5; a parameter has"),
    "types": ("[64, 128, 256]", "[2, True]", "block_size_x has values of several types"),
    "words": ("[64, 128, 256]", "['a b']", "block_size_x has the value 'a b'; a parameter has"),
    "a type": ('["block_size_x"]', '["float"]', "the tunable 'float' is a word of C++: as a macro"),
    "a word": ('["block_size_x"]', '["block size"]', "'block size' cannot be a macro's name"),
    "divisor": ("answer=answer", "grid_div_x=['tile']", ": tile is not a tunable"),
    "function": ("answer=answer", "grid_div_x=lambda p: p", "grid_div_x cannot be written as an"),
    "restriction": (
        *("answer=answer", "restrictions=['block_size_x.bit_length() > 2']"),
        "the restriction `block_size_x.bit_length() > 2` cannot be written as a constraint",
    ),
    "a name": ("answer=answer", "restrictions='n > 3'", "constraint: n is not a tunable"),
    "none left": ("answer=answer", "restrictions=lambda p: False", "it allows no configuration"),
    "shared": ("answer=answer", "smem_args={'bytes': 3}", "smem_args has no size; make it"),
    "constant": ("answer=answer", "cmem_args={'c': 3}", "what c gets is a int; make it an"),
    "filled": ("answer=answer", "cmem_args={'c': y}", "y is an output, and c is filled from it"),
    "options": ("answer=answer", "compiler_options=[3]", "a compiler option is a int; make it"),
}
ELSEWHERE = {
    "a package": ("n = 5000", "import no_such_package", "needs the package 'no_such_package'"),
    "a GPU": (
        *("n = 5000", "import pycuda.driver as d\nn = int(d.Device(0).total_memory())"),
        "the script needs the value of pycuda.driver.Device().total_memory(), which is not",
    ),
    "memory": ("n = 5000", "n = np.zeros(1 << 50)", "it needs more than "),
}
"""The same, where something is missing on this machine."""


@pytest.mark.sweep(12)
@pytest.mark.parametrize("case", [*MISTAKES, *ELSEWHERE])
def test_what_does_not_come_in_is_one_line_and_nothing_is_written(
    case: str, invoke: Invoke, tmp_path: Path
) -> None:
    old, new, words = {**MISTAKES, **ELSEWHERE}[case]
    assert old in SIMPLE
    (tmp_path / "tune.py").write_text(SIMPLE.replace(old, new))
    made = invoke("init", "mine", "--from-kernel-tuner", "tune.py")
    assert made.exit_code == (2 if case in MISTAKES else 3), made.output
    (line,) = made.stderr.splitlines()
    assert line.startswith("error: tune.py:")
    assert words in line
    assert [path.name for path in tmp_path.iterdir()] == ["tune.py"]


@pytest.mark.soak
def test_a_script_that_never_ends_is_killed_with_its_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importing, "LIMIT_S", 3.0)
    more = "import os, time\nname = f'pid{bool(os.fork())}'\n"
    more += "open(name, 'w').write(str(os.getpid()))\n"
    with pytest.raises(UsageError, match="it did not call tune_kernel\\(\\) within 3 s"):
        brought_in(tmp_path, more + "time.sleep(3600)\n" + SIMPLE)
    for name in ("pidTrue", "pidFalse"):
        state = Path(f"/proc/{(tmp_path / name).read_text()}/stat")
        deadline = time.monotonic() + PATIENCE_S
        while state.exists() and state.read_text().split()[2] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_script_from_elsewhere_runs_after_agreement(invoke: Invoke, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    script = f"open({str(tmp_path / 'written')!r}, 'w').write('x')\n" + SIMPLE
    (tmp_path / "tune.py").write_text(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        refused = invoke("init", "--from-kernel-tuner", "../tune.py")
        assert refused.exit_code == 2
        assert "this would execute" in refused.stderr
        assert "add --trust" in refused.stderr
        assert not (tmp_path / "written").exists()
        assert invoke("init", "--from-kernel-tuner", "../tune.py", "--trust").exit_code == 0
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from-kernel-tuner", "gone.py"), "cannot read gone.py: No such file"),
        (("--from-kernel-tuner", "."), "expected a file, found a directory"),
        (("--from-kernel-tuner", "tune.py", "--language", "cuda"), "exclude each other"),
        (("mine", "--output", "y"), "--kernel, --output and --args need --from-kernel-tuner"),
        (("a b", "--from-kernel-tuner", "tune.py"), "'a b' is not a kernel's name"),
        (("--from-kernel-tuner", "tune.py", "--args", "'a"), "No closing quotation"),
        (("taken", "--from-kernel-tuner", "tune.py"), "taken exists already"),
        ((), "name the kernel, as in"),
    ],
)
def test_words_that_make_no_sense(
    words: tuple[str, ...], said: str, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "tune.py").write_text(SIMPLE)
    (tmp_path / "taken").mkdir()
    made = invoke("init", *words)
    assert made.exit_code == 2
    assert said in made.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken", "tune.py"]


def test_a_files_name_is_no_code(invoke: Invoke, tmp_path: Path) -> None:
    name = 'a"""\nraise SystemExit(9)\n"""b.py'
    (tmp_path / name).write_text(SIMPLE)
    assert invoke("init", "--from-kernel-tuner", name).exit_code == 0
    problem = (tmp_path / "scale" / "problem.py").read_text()
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(ast.parse(problem)))
    space = (tmp_path / "scale" / "space.yaml").read_text()
    parse_space(space, tmp_path / "space.yaml")


def test_a_templated_helper_beside_the_kernel_compiles(invoke: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    helper = (
        "template <typename V> __device__ V twice(V v) { return v + v; }\n__global__ void scale"
    )
    script = SIMPLE.replace("__global__ void scale", helper).replace(
        "a * x[i];", "a * twice(x[i]) / 2;"
    )
    (tmp_path / "tune.py").write_text(script)
    assert invoke("init", "scale", "--from-kernel-tuner", "tune.py").exit_code == 0
    made = invoke("compile", "scale/space.yaml", "--device", "l4", "--trust", "--sample", "1")
    assert made.exit_code == 0, made.output
