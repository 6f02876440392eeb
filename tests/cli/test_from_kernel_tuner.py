"""`evotune init --from-kernel-tuner` imports scripts as Kernel Tuner's users write them. Where it
cannot tell what a script means, it prints one line and writes nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import Result

from evotune.cli.kernel_tuner.importing import Imported, import_script
from evotune.errors import UsageError
from evotune.space.document import SpaceDocument, parse_space

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
from mine import add

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


def brought_in(folder: Path, script: str, *outputs: str, kernel: str | None = None) -> Imported:
    path = folder / "tune.py"
    path.write_text(script)
    return import_script(path, None, kernel, outputs)


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
    (kernel,) = space_of(import_script(tmp_path / "tune.py", None, None, ())).kernels
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
    assert space.problem.shapes == ({"problem_size_x": 64, "taps": 7},)
    assert kernel.define == ("taps", "problem_size_x")  # the latter for grid_size_x
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
        "BLOCK_SIZE_X": tuple(2**i for i in range(4, 12)),
        "TILE": (1, 2, 3, 4),
    }
    assert [spec.expression.text for spec in space.constraints] == [
        "TILE == 1 or BLOCK_SIZE_X % 32 == 0",
        "BLOCK_SIZE_X * TILE < 2048",
        "BLOCK_SIZE_X <= device.threads_per_block",
    ]
    assert made.notes[0] == "taps is fixed at 7, not a parameter: sizes of arrays depend on it"
    assert "left out the compiler option '-arch=sm_70'" in made.notes[1]


def test_sizes_that_the_kernel_is_not_told_stay_as_they_are(tmp_path: Path) -> None:
    made = blurring(tmp_path)
    problem = made.files["problem.py"].decode()
    assert value_of(problem, "fixed") == ("problem_size_x", "taps")
    assert '"image": (problem_size_x + taps - 1,),' in problem
    assert '"weights": (taps,),' in problem
    told = brought_in(tmp_path, SIMPLE).files["problem.py"].decode()
    assert value_of(told, "sizes") == ("n",)
    assert "fixed" not in told


def test_without_an_answer_one_method_is_to_be_written(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(SIMPLE.replace("a * x, None", "np.sort(x), None"))
    made = invoke("init", "--from-kernel-tuner", "tune.py")
    assert made.exit_code == 0
    lines = (tmp_path / "scale" / "problem.py").read_text().splitlines()
    (line,) = (n for n, text in enumerate(lines, 1) if "NotImplementedError" in text)
    assert f"still to be written: compute, at scale/problem.py:{line}" in made.stderr
    checked = invoke("check", "scale/space.yaml", "--device", "h200", "--no-compile")
    assert checked.exit_code == 2
    assert f"problem.py:{line}: NotImplementedError: say here what" in checked.stderr


@pytest.mark.parametrize(
    ("answer", "torch"),
    [
        ("np.sqrt(x) + 1", "x.sqrt() + 1"),
        ("np.maximum(x, x * 2) / a", "x.maximum(x * 2) / 2.5"),
        ("-x", "0 - x"),
        ("x.astype(np.float64) ** 2", "x ** 2"),
        ("n * x", None),  # n may vary
        ("np.cumsum(x)", None),
        ("y + x", None),  # y is not an input
        ("x[0] * x", None),
        ("np.sum(x)", None),  # its shape differs from that of y
    ],
)
def test_answers_become_torch_where_they_are_expressions(
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
    assert '"A": (m, 30),' in problem
    assert '"C": A @ B,' in problem
    (launch,) = space_of(made).kernels[0].launches
    assert [e.text for e in launch.grid] == [
        *("ceil_div(m, BLOCK_SIZE_X)", "ceil_div(problem_size_y, BLOCK_SIZE_Y * 2)"),
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


def test_of_several_kernels_one_is_named(tmp_path: Path) -> None:
    two = SIMPLE + 'tune_kernel("scale2", source.replace("a", "b"), n, args, params)\n'
    with pytest.raises(
        UsageError, match=r"called 2 times; say which with --kernel \(scale, scale2"
    ):
        brought_in(tmp_path, two)
    assert brought_in(tmp_path, two, kernel="scale").name == "scale"
    with pytest.raises(UsageError, match=r"no call .* for scal; did you mean 'scale'"):
        brought_in(tmp_path, two, kernel="scal")


@pytest.mark.parametrize("call", ["go(n, params)", "go(length=n, choices=params)"])
def test_a_function_gets_its_parameters_from_its_only_call(call: str, tmp_path: Path) -> None:
    head, _, _ = SIMPLE.partition('tune_kernel("scale"')
    body = "def go(length, choices):\n    tune_kernel('scale', source, length, args, choices)\n"
    made = brought_in(tmp_path, f"{head}{body}{call}\n")
    assert value_of(made.files["problem.py"].decode(), "sizes") == ("n",)
    with pytest.raises(UsageError, match="choices is a parameter of go"):
        brought_in(tmp_path, f"{head}{body}{call}\n{call}\n")


# Each mistake: the text that is replaced in the script, its replacement, words of the error line.
MISTAKES = {
    "no call": ("tune_kernel(", "print(", "1: no call of kernel_tuner's tune_kernel() in it"),
    "no Python": ("params = dict()", "params = dict(", "17: not Python: '(' was never closed"),
    "a loop": ('tune_kernel("', 'for i in [1]: tune_kernel("', "is called in a loop; call it"),
    "stars": ("params, answer", "*params, answer", "called with * or **; write its arguments out"),
    "no name": ('"scale"', "input()", "cannot tell the kernel's name"),
    "a template": ('"scale"', '"scale<float>"', "'scale<float>' is not a plain kernel name"),
    "other code": ("source = ", "source = make() or ", "cannot tell the kernel's source"),
    "a generator": ('"scale", source', '"scale", lambda p: source', "source is made by code"),
    "sources": ('"scale", source', '"scale", [source, source]', "the kernel has several sources"),
    "no file": ('"scale", source', '"scale", "scale.cu"', "cannot read source scale.cu: No such"),
    "an odd file": ('"scale", source', """"scale", 'a"b.cu'""", "cannot have; rename the file"),
    "outside": ('"scale", source', '"scale", "../scale.cu"', "lies outside the space's root"),
    "opencl": ("__global__", "__kernel", "the kernel is in OpenCL; evotune brings in CUDA"),
    "c": ("__global__", "extern", "the source has no __global__ function"),
    "a language": ("answer=answer", 'lang="HIP"', "the kernel is in HIP; evotune brings in CUDA"),
    "texture": ("answer=answer", "texmem_args={'t': x}", "texmem_args: textures are not"),
    "defines": ("answer=answer", "defines={'M': 3}", "defines: put the macros into tune_params"),
    "sizes": ("source, n", "source, read()", "cannot tell problem_size: read"),
    "four": ("source, n", "source, (n,1,1,1)", "problem_size has 4 sizes"),
    "no size": ("n = 5000", "n = 0", "the size n is 0; expected a whole number of at least 1"),
    "no array": ("np.random.randn(n)", "np.load('x')", "13: cannot tell argument 1: numpy.load()"),
    "a double": (".astype(np.float32)", "", "y has elements of float64; tensors of a"),
    "integers": ("np.zeros_like(x)", "np.zeros(n, np.int32)", "y has elements of int32; tensors"),
    "mixed": ("np.zeros_like(x)", "np.zeros(n, np.float16)", "x has elements of float32, y of"),
    "plain": ("np.int32(n)]", "n]", "argument 4 is a plain number; make it numpy.int32"),
    "count": (", np.int32(n)]", "]", "scale takes 4 arguments, the script gives 3"),
    "no inputs": ("args = [y, x, a", "args = [y, y, a", "the kernel reads no array; a problem"),
    "tunables": ("params = dict()", "params = load()", "cannot tell tune_params: load has no"),
    "no tunables": ('params["block_size_x"]', "sizes", "tune_params is empty; a space has"),
    "values": ("[64, 128, 256]", "choose()", "cannot tell the values of block_size_x: choose has"),
    "floats": ("[64, 128, 256]", "[0.5, 1.5]", "block_size_x has the value 0.5; a parameter has"),
    "types": ("[64, 128, 256]", "[2, True]", "block_size_x has values of several types"),
    "words": ("[64, 128, 256]", "['a b']", "block_size_x has the value 'a b'; a parameter has"),
    "a type": ('["block_size_x"]', '["float"]', "the tunable 'float' is a word of C++: as a macro"),
    "a word": ('["block_size_x"]', '["block size"]', "'block size' cannot be a macro's name"),
    "divisor": (
        "answer=answer",
        "grid_div_x=['tile']",
        ": tile is not a tunable; make it",
    ),
    "function": ("answer=answer", "grid_div_x=lambda p: p", "grid_div_x cannot be written as an"),
    "restriction": (
        *("answer=answer", "restrictions=['block_size_x.bit_length() > 2']"),
        "the restriction `block_size_x.bit_length() > 2` cannot be written as a constraint",
    ),
    "a name": ("answer=answer", "restrictions='n > 3'", "constraint: n is not a tunable; write it"),
    "code": ("answer=answer", "restrictions=[print]", "cannot tell a restriction"),
    "shared": ("answer=answer", "smem_args={'bytes': 3}", "cannot tell the size in smem_args"),
    "constant": ("answer=answer", "cmem_args={'c': 3}", "cannot tell what c gets; make it an"),
    "filled": ("answer=answer", "cmem_args={'c': y}", "y is an output, and c is filled from it"),
    "options": ("answer=answer", "compiler_options=[3]", "cannot tell a compiler option"),
    "changed": (
        *("tune_kernel(", "while x.size > 3: params.pop()\ntune_kernel("),
        "cannot tell tune_params: it is changed at line",
    ),
    "branch": ("n = 5000", "n = 5000\nif input(): n = 3", "depends on a condition at line 13"),
    "handed": ("tune_kernel(", "add(params)\ntune_kernel(", "given to add(), which may change it"),
    "many": ("[64, 128, 256]", "[i for i in range(10**9)]", "a range of more than 100000 values"),
    "nested": (
        *("[64, 128, 256]", "[i * j for i in range(9999) for j in range(9999)]"),
        "the script takes too many steps to read; make its lists and loops shorter",
    ),
    "power": ("[64, 128, 256]", "[9 ** 9 ** 9]", "block_size_x: the exponent is too large"),
    "repeated": ("[64, 128, 256]", "[1] * 10**12", "a list of more than 100000 values"),
    "loop": (
        *("answer = ", "for i in range(9000):\n  for j in range(9000): k = j\nanswer = "),
        "the script takes too many steps to read",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_what_cannot_be_told_is_one_line_and_nothing_is_written(
    case: str, invoke: Invoke, tmp_path: Path
) -> None:
    old, new, words = MISTAKES[case]
    assert old in SIMPLE
    (tmp_path / "tune.py").write_text(SIMPLE.replace(old, new))
    made = invoke("init", "mine", "--from-kernel-tuner", "tune.py")
    assert_refused(made, words)
    assert [path.name for path in tmp_path.iterdir()] == ["tune.py"]


def assert_refused(made: Result, words: str) -> None:
    assert made.exit_code == 2, made.output
    (line,) = made.stderr.splitlines()
    assert line.startswith("error: tune.py:")
    assert line.split(":", 3)[2].isdigit()
    assert words in line


def test_a_script_is_read_and_not_run(invoke: Invoke, tmp_path: Path) -> None:
    script = f"open({str(tmp_path / 'written')!r}, 'w').write('x')\n" + SIMPLE
    (tmp_path / "tune.py").write_text(script)
    assert invoke("init", "--from-kernel-tuner", "tune.py").exit_code == 0
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from-kernel-tuner", "gone.py"), "cannot read gone.py: No such file"),
        (("--from-kernel-tuner", "."), "expected a file, found a directory"),
        (("--from-kernel-tuner", "tune.py", "--language", "cuda"), "exclude each other"),
        (("mine", "--output", "y"), "--kernel and --output need --from-kernel-tuner"),
        (("a b", "--from-kernel-tuner", "tune.py"), "'a b' is not a kernel's name"),
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


@pytest.mark.parametrize("depth", [100, 20_000])
@pytest.mark.parametrize("shape", ["{}1{}", "x = {}1{}", "y = [{}1{}]"])
def test_a_deep_expression_ends_in_one_line_or_is_left_alone(
    depth: int, shape: str, invoke: Invoke, tmp_path: Path
) -> None:
    for opening, closing in (("(", ")"), ("-", ""), ("1+", ""), ("[", "]")):
        text = shape.format(opening * depth, closing * depth)
        (tmp_path / "tune.py").write_text(f"{text}\nimport kernel_tuner\n")
        made = invoke("init", "mine", "--from-kernel-tuner", "tune.py")
        assert_refused(made, "")


def test_a_files_name_is_no_code(invoke: Invoke, tmp_path: Path) -> None:
    name = 'a"""\nraise SystemExit(9)\n"""b.py'
    (tmp_path / name).write_text(SIMPLE)
    assert invoke("init", "--from-kernel-tuner", name).exit_code == 0
    problem = (tmp_path / "scale" / "problem.py").read_text()
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(ast.parse(problem)))
    space = (tmp_path / "scale" / "space.yaml").read_text()
    parse_space(space, tmp_path / "space.yaml")


def test_a_number_that_doubles_each_line_takes_no_time(tmp_path: Path) -> None:
    doubling = "n = 3\nm = n + 0 * n\n" + "m = m + m - m\n" * 60
    made = brought_in(tmp_path, SIMPLE.replace("n = 5000\n", f"{doubling}"))
    assert value_of(made.files["problem.py"].decode(), "sizes") == ("n",)


HELPERS = SIMPLE.replace(
    """params = dict()
params["block_size_x"] = [64, 128, 256]
""",
    """
def sizes(least, most=256):
    found = []
    for i in range(10):
        if least <= 2 ** i <= most:
            found.append(2 ** i)
    return found

def tunables(n):
    params = dict()
    params["block_size_x"] = sizes(64)
    return params, 3

params, most = tunables(n)
""",
)


def test_what_a_function_of_the_script_returns_is_known(tmp_path: Path) -> None:
    made = brought_in(tmp_path, HELPERS)
    parameters = space_of(made).parameters
    assert [(p.name, [*p.parameter.values]) for p in parameters] == [
        ("BLOCK_SIZE_X", [64, 128, 256])
    ]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return params, 3", "if input(): return {}, 3\n    return params, 3", "condition at line"),
        ("return params, 3", "while True: return params, 3", "it is changed at line"),
        ("return params, 3", "yield params", "the result of tunables() is not followed"),
        ("return params, 3", "return tunables(n)", "the result of tunables() is not followed"),
    ],
)
def test_a_function_that_cannot_be_followed_is_named(
    invoke: Invoke, tmp_path: Path, old: str, new: str, why: str
) -> None:
    (tmp_path / "tune.py").write_text(HELPERS.replace(old, new))
    made = invoke("init", "mine", "--from-kernel-tuner", "tune.py")
    assert_refused(made, "cannot tell tune_params: ")
    assert why in made.stderr


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
