"""The red team's CUDA kernels on the CPU: right ones are right, and cheats do what their names say.
Whether the gate refuses them on a GPU is shown by test_cuda_classes.py.

`make test` runs the fastest of these; `make soak` all.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.problems.problem import Tensors
from evotune.runs.setup import load_setup
from evotune.trial import Configuration
from tests.patience import PATIENCE_S

from .cuda_expected import CLASSES, PASSES, RIGHT, THIRD
from .emulated.running import EmulatedSpace
from .pipeline import SPACES

pytestmark = pytest.mark.filterwarnings("ignore")

HEAD_DIM = 64
SHAPE = {"batch": 1, "heads": 2, "seq_len": 150, "head_dim": HEAD_DIM}
SMALL = {"batch": 1, "heads": 1, "seq_len": 12, "head_dim": HEAD_DIM}


class Spaces:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, EmulatedSpace] = {}

    def of(self, cheat_class: str) -> EmulatedSpace:
        if cheat_class not in self._open:
            folder = self._folder / cheat_class
            folder.mkdir()
            self._open[cheat_class] = EmulatedSpace(folder, SPACES / CLASSES[cheat_class].space)
        return self._open[cheat_class]


@pytest.fixture(scope="module")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> Spaces:
    return Spaces(tmp_path_factory.mktemp("emulated"))


def _normal(space: EmulatedSpace, job_case: object, seed: int = 0) -> Tensors:
    return space.problem.make_inputs(job_case, "normal", seed)  # type: ignore[arg-type]


# --- rests and memories ------------------------------------------------------------------------

TIMED = [
    (name, each)
    for name in ("timed_counts", "timed_clock", "timed_probes", "timed_packing")
    for each in (RIGHT, *CLASSES[name].expected)
]
ROUNDS, PER_ADDRESS, APART_US = 6, 50, 1.0
# Copying an input, or reading its copy, costs no exponential: these cheats show in their answers.
PACKS = set(CLASSES["timed_packing"].expected)


def _timed(spaces: Spaces, cheat_class: str, behaviour: str) -> None:
    """Launches as in timed samples: rows of launches at two addresses, 1 us apart, on equal
    inputs. A launch that rests computes fewer exponentials."""
    space = spaces.of(cheat_class)
    job = space.job(behaviour, SMALL, causal=True)
    inputs = _normal(space, job.case)
    first = space.bind(job, inputs)
    second = space.bind(job, inputs, first.kernel)
    reference = space.problem.reference(job.case, inputs)["out"]
    first.launch()
    first.kernel.let_pass(500.0)
    second.launch()  # a timed kernel has run before at each place
    work: list[int] = []
    for _ in range(ROUNDS):
        for bound in (first, second):
            first.kernel.let_pass(500.0)
            for _ in range(PER_ADDRESS):
                before = bound.kernel.exponentials
                bound.launch()
                work.append(bound.kernel.exponentials - before)
                first.kernel.let_pass(APART_US - 0.5)
    # Resting does not show in the results as long as the inputs stay the same.
    for bound in (first, second):
        assert (bound.out.double() - reference).abs().max() < 0.01
    assert (min(work) <= 0.6 * max(work)) == (behaviour not in PACKS | {RIGHT}), set(work)


def _packed(spaces: Spaces, behaviour: str) -> None:
    """A kernel that packs an input does not see a few new elements after many equal launches."""
    space = spaces.of("timed_packing")
    job = space.job(behaviour, SMALL, causal=True)
    inputs = _normal(space, job.case)
    bound = space.bind(job, inputs)
    for _ in range(30):
        bound.launch()
    name = {"q": "q", "v": "v"}.get(behaviour[0], "k") if behaviour != RIGHT else "k"
    there = bound.memory[name].view(-1)
    there[5::64] = 4.0
    bound.launch()
    new = {**inputs, name: there.view(inputs[name].shape).clone()}
    error = (bound.out.double() - space.problem.reference(job.case, new)["out"]).abs().max()
    assert (error > 0.05) == (behaviour != RIGHT), error


@pytest.mark.parametrize("behaviour", [RIGHT, "rests_every_4th", "rests_after_4_at_an_address"])
def test_a_launch_that_rests_works_less(spaces: Spaces, behaviour: str) -> None:
    _timed(spaces, "timed_counts", behaviour)


@pytest.mark.soak
@pytest.mark.parametrize(("cheat_class", "behaviour"), TIMED)
def test_each_timed_cheat_rests(spaces: Spaces, cheat_class: str, behaviour: str) -> None:
    _timed(spaces, cheat_class, behaviour)


@pytest.mark.soak
@pytest.mark.parametrize("behaviour", [RIGHT, *sorted(PACKS)])
def test_what_is_packed_is_believed(spaces: Spaces, behaviour: str) -> None:
    _packed(spaces, behaviour)


# --- numbers -----------------------------------------------------------------------------------


def _shifted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: torch.Tensor) -> None:
    """Adds `scores` to the scores of each row: q0 k0 / 8 with q0 = 4 and k0 = 2 scores."""
    q[..., 0], k[..., 0] = 4.0, 2.0 * scores
    q[..., 1:] *= 0.3


def _below(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    _shifted(q, k, v, torch.full(k.shape[:-1], -150.0))


def _growing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    _shifted(q, k, v, torch.linspace(0.0, 200.0, k.shape[2]).expand(k.shape[:-1]))


def _sink(gap: float) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    def change(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        scores = torch.zeros(k.shape[:-1])
        scores[..., 0] = gap
        _shifted(q, k, v, scores)
        q[..., 1:] *= 0.1
        v.fill_(30.0)
        v[..., 0, :] = 0.0

    return change


def _zero_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    q.zero_()


def _large_values(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    v *= 100.0


def _as_they_are(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    pass


NUMBERS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]] = {
    "drops_weights_below_e6": _sink(6.5),
    "drops_weights_below_e9": _sink(9.5),
    "drops_weights_below_e12": _sink(12.5),
    "crude_exp": _sink(6.5),
    "no_maximum_but_clamped": _growing,
    "maximum_from_zero": _below,
    "maximum_from_flt_min": _below,
    "reads_values_past_the_end": _as_they_are,
    "zero_score_is_masked": _zero_queries,
    "mask_of_minus_100": _below,
    "mask_of_minus_30": _below,
    "padding_in_the_maximum": _below,
    "first_tiles_maximum": _growing,
    "first_score_as_maximum": _growing,
    "no_maximum": _growing,
    "no_maximum_below_60": _below,
    "drops_tiles_below_e6": _sink(6.5),
    "drops_tiles_below_e9": _sink(9.5),
    "outputs_clamped_at_6": _large_values,
}


@pytest.mark.soak
@pytest.mark.parametrize("cheat_class", ["numbers_fp16", "numbers_bf16"])
@pytest.mark.parametrize("behaviour", NUMBERS)
def test_a_cheat_fails_on_its_numbers(spaces: Spaces, cheat_class: str, behaviour: str) -> None:
    space = spaces.of(cheat_class)
    errors = {}
    for name in (RIGHT, behaviour):
        job = space.job(name, SHAPE, causal=True)
        inputs = _normal(space, job.case)
        NUMBERS[behaviour](*inputs.values())
        errors[name] = space.error(job, inputs)
    scale = float(inputs["v"].double().abs().max())
    assert errors[RIGHT] < 0.01 * scale, errors
    assert errors[behaviour] > 3 * errors[RIGHT], errors


@pytest.mark.soak
@pytest.mark.parametrize("cheat_class", ["numbers_fp16", "numbers_bf16"])
def test_a_half_sum_of_weights_shows_over_many_keys(spaces: Spaces, cheat_class: str) -> None:
    """All values are 1, so each output is 1 unless its sum of weights is wrong."""
    space = spaces.of(cheat_class)
    errors = {}
    for behaviour in (RIGHT, "half_sum_of_weights"):
        job = space.job(behaviour, _shape(1, 1, 1, 700), causal=False)
        inputs = _normal(space, job.case)
        inputs["v"].fill_(1.0)
        errors[behaviour] = space.error(job, inputs)
    assert errors[RIGHT] < 1e-9
    assert errors["half_sum_of_weights"] > 0.001, errors


@pytest.mark.soak
def test_padding_that_nobody_wrote_holds_what_a_block_before_left(spaces: Spaces) -> None:
    space = spaces.of("numbers_fp16")
    found = {}
    for behaviour in (RIGHT, "padding_left_unwritten"):
        job = space.job(behaviour, SMALL, causal=True)
        inputs = _normal(space, job.case)
        long = space.job(behaviour, SHAPE, causal=True)
        poison = {
            name: torch.full_like(x, torch.nan) for name, x in _normal(space, long.case).items()
        }
        before = space.bind(long, poison)
        before.launch()
        bound = space.bind(job, inputs, before.kernel)
        bound.launch()
        found[behaviour] = bool(torch.isfinite(bound.out).all())
    assert found == {RIGHT: True, "padding_left_unwritten": False}


# --- shapes ------------------------------------------------------------------------------------


def _shape(batch: int, heads: int, kv_heads: int, keys: int) -> dict[str, int]:
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": HEAD_DIM}
    return {**sizes, "seq_len_q": 3, "seq_len_k": keys}


SHAPES = {
    "wrong_from_batch_2": _shape(3, 1, 1, 9),
    "wrong_from_batch_3": _shape(4, 1, 1, 9),
    "wrong_from_batch_5": _shape(6, 1, 1, 9),
    "wrong_from_head_4": _shape(1, 5, 5, 9),
    "wrong_from_head_6": _shape(1, 7, 7, 9),
    "wrong_from_head_8": _shape(1, 9, 9, 9),
    "wrong_from_head_20": _shape(1, 21, 21, 9),
    "wrong_beyond_16_sequences": _shape(2, 9, 9, 9),
    "wrong_for_groups_of_3": _shape(1, 6, 2, 9),
    "wrong_for_groups_of_5": _shape(1, 10, 2, 9),
    "wrong_for_groups_of_7": _shape(1, 14, 2, 9),
    "wrong_for_groups_of_8": _shape(1, 8, 1, 9),
    "wrong_beyond_600_keys": _shape(1, 1, 1, 601),
    "wrong_beyond_1024_keys": _shape(1, 1, 1, 1025),
    "wrong_at_63_mod_64": _shape(1, 1, 1, 63),
    "wrong_at_1_mod_128": _shape(1, 1, 1, 129),
    "wrong_at_127_mod_128": _shape(1, 1, 1, 127),
    "index_of_16_bits": _shape(1, 1, 1, 1025),
    "wrong_at_odd_lengths_from_4000": _shape(1, 1, 1, 4001),
    "wrong_at_4095_keys": _shape(1, 1, 1, 4095),
    "wrong_beyond_4096_keys": _shape(1, 1, 1, 4097),
}


@pytest.mark.soak
@pytest.mark.parametrize("behaviour", SHAPES)
def test_a_cheat_fails_on_its_shape_and_not_on_a_usual_one(spaces: Spaces, behaviour: str) -> None:
    space = spaces.of("shapes" if behaviour in CLASSES["shapes"].expected else "shapes_long")

    def error(name: str, shape: dict[str, int]) -> float:
        job = space.job(name, shape, causal=False)
        inputs = _normal(space, job.case)
        # The last key counts for half of each row.
        inputs["k"][:, :, -1, 0], inputs["q"][..., 0] = 8.0 * 6.5, 1.0
        return space.error(job, inputs)

    usual = _shape(2, 2, 1, 100)
    assert error(RIGHT, SHAPES[behaviour]) < 0.01
    assert error(behaviour, usual) < 0.01
    assert error(behaviour, SHAPES[behaviour]) > 0.03


# --- strides -----------------------------------------------------------------------------------

STRIDED = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len_q": 5, "seq_len_k": 70}
SHOWS_ELSEWHERE = {"writes_one_behind", "offsets_of_32_bits"}


@pytest.mark.parametrize(
    "behaviour",
    [RIGHT, *(each for each in CLASSES["strides"].expected if each not in SHOWS_ELSEWHERE)],
)
def test_a_wrong_stride_shows_where_each_tensor_has_strides_of_its_own(
    spaces: Spaces, behaviour: str
) -> None:
    space = spaces.of("strides")
    shape = {**STRIDED, "head_dim": HEAD_DIM}
    errors = {}
    for layout in ("bhld", "mixed"):
        job = space.job(behaviour, {**shape, "layout": layout}, causal=False)
        errors[layout] = space.error(job, _normal(space, job.case))
    assert errors["bhld"] < 0.01 or behaviour == "head_stride_of_q_for_k", errors
    assert (errors["mixed"] < 0.01) == (behaviour == RIGHT), errors


def compiled(job: CompileJob, folder: Path) -> str:
    """The compiler's log where the job does not compile; else ""."""
    from evotune.backends.cuda.compiler import NvrtcCompiler

    built = NvrtcCompiler().compile(job, folder / f"{job.key}.cubin", PATIENCE_S)
    return built.log if isinstance(built, CompileFailure) else ""


@pytest.mark.soak
def test_kernels_with_strides_compile(spaces: Spaces, tmp_path: Path) -> None:
    """In processes of their own, as in a run: NVRTC once ended the tests' process."""
    pytest.importorskip("cupy")
    space = spaces.of("strides")
    behaviours = [RIGHT, *CLASSES["strides"].expected]
    jobs = [space.job(each, SHAPE, causal=True).compile for each in behaviours]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        logs = list(pool.map(compiled, jobs, [tmp_path] * len(jobs)))
    assert not [log for log in logs if log], logs


def _of_every_architecture(cheat_class: str) -> list[CompileJob]:
    """The jobs of all of a class's kernels for sm_80, sm_89 and sm_90a."""
    found = []
    for device in ("a100", "l4", "h200"):
        setup = load_setup(SPACES / CLASSES[cheat_class].space, device, compile_only=True)
        assert setup.planner is not None
        for each in (*CLASSES[cheat_class].right, *CLASSES[cheat_class].expected):
            found += setup.planner.compile_jobs(Configuration({"BEHAVIOUR": each}))[:1]
    return found


@pytest.mark.soak
@pytest.mark.parametrize("cheat_class", ["paged", "packed", "features", "masks", *THIRD])
def test_kernels_of_ragged_sequences_features_and_the_third_team_compile(
    cheat_class: str, tmp_path: Path
) -> None:
    pytest.importorskip("cupy")
    jobs = _of_every_architecture(cheat_class)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        logs = list(pool.map(compiled, jobs, [tmp_path] * len(jobs)))
    assert not [log for log in logs if log], logs


# --- users' problems -----------------------------------------------------------------------------

SOFTMAX: dict[str, tuple[int, float, float]] = {  # columns; factor and summand of the inputs
    "sum_up_to_300_columns": (301, 1.0, 0.0),
    "sum_up_to_5000_columns": (5001, 1.0, 0.0),
    "sum_without_odd_last_when_long": (1001, 1.0, 0.0),
    "maximum_from_zero": (200, 1.0, -150.0),
    "maximum_of_the_first_128": (1001, 100.0, 0.0),
    "no_maximum": (200, 1.0, 150.0),
    "maximum_above_80_only": (200, 1.0, -150.0),
    "weights_below_e12_dropped": (200, 8.0, 0.0),
}
RMS_NORM = {
    "eps_of_1e_3": (200, 0.03, 0.0),
    "no_eps": (200, 0.0, 0.0),
    "sum_up_to_300_columns": (1001, 1.0, 0.0),
    "half_squares": (200, 100.0, 0.0),
    "half_sum": (1001, 10.0, 0.0),
    "values_clamped_at_30": (200, 20.0, 0.0),
    "mean_of_one_less": (3, 1.0, 0.0),
}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("cheat_class", "behaviour", "numbers"),
    [("softmax", *item) for item in SOFTMAX.items()]
    + [("rms_norm", *item) for item in RMS_NORM.items()],
)
def test_a_cheat_fails_on_a_users_problem(
    spaces: Spaces, cheat_class: str, behaviour: str, numbers: tuple[int, float, float]
) -> None:
    columns, times, plus = numbers
    space = spaces.of(cheat_class)
    errors = {}
    for name in (RIGHT, behaviour):
        job = space.job(name, {"rows": 3, "columns": columns})
        inputs = _normal(space, job.case)
        inputs["x"] = inputs["x"] * times + plus
        reference = space.problem.reference(job.case, inputs)["out"]
        errors[name] = space.error(job, inputs) / max(float(reference.abs().max()), 1e-30)
    assert errors[RIGHT] < 0.002, errors
    assert errors[behaviour] > max(3 * errors[RIGHT], 1e-9), errors


# --- races ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", [RIGHT, *CLASSES["races"].expected])
def test_what_a_missing_wait_or_barrier_does(spaces: Spaces, behaviour: str) -> None:
    """Copies come as late as they may, and one warp may be far ahead of the others."""
    space = spaces.of("races")
    job = space.job(behaviour, {**SMALL, "seq_len": 70}, causal=False)
    inputs = _normal(space, job.case)
    worst = max(space.error(job, inputs) for _ in range(3))
    assert (worst < 0.01) == (behaviour == RIGHT), worst


def test_parts_are_merged_when_all_are_there(spaces: Spaces) -> None:
    space = spaces.of("tickets")
    shape = {**SMALL, "seq_len": 70}
    job = space.job(RIGHT, shape, causal=True)
    inputs = _normal(space, job.case)
    assert space.error(job, inputs) < 0.01
    early = space.job("merges_before_the_last_part", shape, causal=True)
    assert space.error(early, inputs) > 0.01


def test_every_space_has_the_kernels_that_are_expected(spaces: Spaces) -> None:
    for name, found in CLASSES.items():
        behaviours = [each for each in spaces.of(name).behaviours if each not in PASSES]
        assert sorted(behaviours) == sorted([*found.right, *found.expected]), name
