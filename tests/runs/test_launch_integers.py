"""A fraction, or too large a number, where a launch needs an integer: an error that names it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from workers.faulty import space_text

from evotune.errors import SpaceError
from evotune.runs.inspect import check_space
from evotune.runs.observer import SilentObserver
from evotune.runs.setup import load_setup
from evotune.runs.starting import start_run
from evotune.trial import Configuration
from tests.runs.runs import run_request

SPACE = Path(__file__).parents[1] / "data" / "cuda" / "cuda.yaml"


def _changed(folder: Path, old: str, new: str) -> Path:
    text = SPACE.read_text()
    assert old in text
    shutil.copytree(SPACE.parent / "kernels", folder / "kernels")
    path = folder / "changed.yaml"
    path.write_text(text.replace(old, new))
    return path


PLACES = {
    "grid": ("[batch * heads]\n        block: [1024]", '["heads / 3"]\n        block: [1024]'),
    "block": ("block: [THREADS]", 'block: ["32 / 3"]'),
    "shared memory": ("shared_bytes: SHARED_KIB * 1024", 'shared_bytes: "seq_len_q / 3"'),
    "workspace": ('"4 * SPLIT * heads * batch * seq_len_q * head_dim"', '"heads * head_dim / 3"'),
    "int32": ("seq_len_q]", 'seq_len_q, {value: "seq_len_q / 3", type: int32}]'),
    "int64": ("seq_len_q]", 'seq_len_q, {value: "seq_len_q * 0.7", type: int64}]'),
}


@pytest.mark.parametrize("place", PLACES)
def test_check_refuses_a_fraction_where_an_integer_belongs(tmp_path: Path, place: str) -> None:
    path = _changed(tmp_path, *PLACES[place])
    with pytest.raises(SpaceError, match=r"changed\.yaml:\d+:\d+: .*expected an integer") as found:
        check_space(str(path), "l4")
    assert "//" in found.value.message
    assert "`" in found.value.message
    assert "(1,8,512,64)" in found.value.message


class _Steps(SilentObserver):
    def __init__(self) -> None:
        self.said: list[str] = []

    def phase(self, text: str) -> None:
        self.said.append(text)


TWO_KERNELS = """
parameters:
  FAULT: [none]
"""


@pytest.mark.parametrize("kernels", ["one", "the second"])
def test_a_run_refuses_a_fraction_before_it_has_a_folder(tmp_path: Path, kernels: str) -> None:
    text = space_text("fraction", TWO_KERNELS)
    wrong = text.replace("kv_heads, seq_len_q,", 'kv_heads, {value: "seq_len_q / 3", type: int32},')
    assert wrong != text
    if kernels == "the second":
        first = text[text.index("  faulty:") : text.index("\nparameters:")]
        second = wrong[wrong.index("  faulty:") : wrong.index("\nparameters:")]
        both = first + "\n" + second.replace("faulty:", "other:", 1)
        wrong = text.replace(first, both)
    path = tmp_path / "fraction.yaml"
    path.write_text(wrong)
    steps, runs = _Steps(), tmp_path / "runs"
    with pytest.raises(SpaceError, match=r"fraction\.yaml:\d+:\d+: .*expected an integer"):
        start_run(run_request(path, runs, device="cpu", trials=1), steps)
    assert not runs.exists()
    assert not steps.said


def test_check_refuses_a_number_that_the_argument_cannot_hold(tmp_path: Path) -> None:
    path = _changed(tmp_path, "seq_len_q]", 'seq_len_q, {value: "seq_len_q ** 4", type: int32}]')
    with pytest.raises(SpaceError, match=r"`seq_len_q \*\* 4` is 68719476736, which does not fit"):
        check_space(str(path), "l4")


def test_a_number_that_is_whole_may_come_from_a_division(tmp_path: Path) -> None:
    path = _changed(tmp_path, "block: [THREADS]", 'block: ["THREADS / 2"]')
    planner = load_setup(path, "l4", compile_only=True).planner
    assert planner is not None
    configuration = planner.bound.default()
    launch = planner.proposal(0, configuration).cases[0].plan.launches[0]
    assert launch.block == (64,)
    assert type(launch.block[0]) is int


def test_a_fraction_of_some_configurations_rejects_these_in_a_run(tmp_path: Path) -> None:
    """`check` refuses the space; a run that has begun goes on with the other configurations."""
    path = _changed(tmp_path, "block: [THREADS]", 'block: ["33 / SPLIT"]')
    with pytest.raises(SpaceError, match="expected an integer"):
        check_space(str(path), "l4")
    planner = load_setup(path, "l4", compile_only=True).planner
    assert planner is not None
    whole = planner.bound.default()
    assert not planner.proposal(0, whole).rejection
    fraction = Configuration({**whole, "SPLIT": 2})
    rejection = planner.proposal(1, fraction).rejection
    assert rejection is not None
    assert "`33 / SPLIT` is 16.5, expected an integer" in rejection


def test_a_macro_that_the_compilers_header_uses_is_no_parameter(tmp_path: Path) -> None:
    """NVRTC's own header has `template <typename T>`, which -DT=1 would change."""
    path = _changed(tmp_path, "THREADS", "T")
    with pytest.raises(
        SpaceError, match=r"changed\.yaml:\d+:\d+: the compiler's own header uses T,"
    ):
        check_space(str(path), "l4")
