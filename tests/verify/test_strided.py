"""Tensors that are not contiguous: gaps are guarded, and only elements are filled and poisoned."""

from __future__ import annotations

import ctypes

import pytest
import torch

from evotune.backends.base.launch import LaunchPlan
from evotune.backends.base.session import LaunchFailure
from evotune.problems.problem import TensorSpec
from evotune.verify.buffers import BufferSets, FarTensor, NoRoom, fitted, run_of, unwritten

NO_LAUNCH = LaunchPlan("f", (), (), ())
SHAPE = (2, 3, 5, 8)
ROWS = (2 * 5 * 3 * 16, 16, 3 * 16)  # (batch, rows, heads), each row with a gap behind it
X = TensorSpec("x", SHAPE, "float16", strides=(*ROWS, 1))
OUT = TensorSpec("out", SHAPE, "float32", is_output=True, strides=(*ROWS, 1))


def buffers(sets: int = 1) -> BufferSets:
    values = torch.arange(240, dtype=torch.float16).view(SHAPE)
    return BufferSets((X, OUT), NO_LAUNCH, [{"x": values}] * sets, "cpu")


def poke(address: int, value: int = 0) -> None:
    ctypes.c_uint8.from_address(address).value = value


def element_at(made: BufferSets, spec: TensorSpec, *index: int) -> int:
    size = getattr(torch, spec.dtype).itemsize
    offset = sum(i * stride for i, stride in zip(index, spec.strides, strict=True))
    return made.pointers()[spec.name] + offset * size


@pytest.mark.parametrize("spec", [X, OUT])
@pytest.mark.parametrize("place", [8, 9, 15])
def test_a_byte_between_two_rows_is_seen(spec: TensorSpec, place: int) -> None:
    for byte in (0, getattr(torch, spec.dtype).itemsize - 1):
        made = buffers()
        assert made.inspect().damage() == ""
        poke(element_at(made, spec, 1, 1, 3, place) + byte)
        inspection = made.inspect()
        assert inspection.damage() == f"wrote between the rows of {spec.name}"
        assert any(bool(flag) for flag in inspection.flags)


def test_a_write_outside_or_to_an_input_is_named_as_ever() -> None:
    made = buffers()
    poke(element_at(made, X, 1, 1, 3, 2), 7)
    assert made.inspect().damage() == "changed its input x"
    made = buffers()
    poke(element_at(made, OUT, 1, 2, 4, 7) + 4)
    assert made.inspect().damage() == "wrote outside out"


def test_all_elements_may_be_written_and_only_they_are_poisoned() -> None:
    made = buffers(sets=2)
    out = made.outputs()["out"]
    assert bool(unwritten(out).all())
    out.fill_(1.0)
    assert [made.inspect().damage(number) for number in range(2)] == ["", ""]
    made.prepare(1)
    assert [bool(unwritten(each).any()) for each in out] == [False, True]
    assert [made.inspect().damage(number) for number in range(2)] == ["", ""]


def test_what_lies_between_rows_is_nan_in_inputs_and_outputs() -> None:
    made = buffers()
    for name, dtype in (("x", torch.float16), ("out", torch.float32)):
        view = made._views[name]
        around = torch.tensor([], dtype=dtype).set_(view.untyped_storage())
        row = view[0, 1, 2, 3]
        gap = around[row.storage_offset() + 8 : row.storage_offset() + 16]
        assert bool(gap.isnan().all())
        assert not bool(unwritten(gap).any())


def test_a_copy_of_a_set_is_judged_like_the_set() -> None:
    made = buffers(sets=2)
    copies = made.room()
    for number in range(2):
        copies.copy(made, number)
    assert copies.inspect().damage(1) == ""
    poke(element_at(made, OUT, 0, 0, 0, 8))
    copies.copy(made, 0)
    assert [copies.inspect().damage(n) for n in (0, 1)] == ["wrote between the rows of out", ""]


def test_alterations_reach_whole_rows_or_a_part_of_one() -> None:
    flat = torch.arange(240, dtype=torch.float16)
    for place, count in ((0, 3), (37, 8), (100, 20), (230, 10), (239, 1), (85, 200)):
        made = buffers(sets=2)
        place, count = fitted(X, place, count)  # noqa: PLW2901
        found = made.elements("x", place, count)
        assert torch.equal(found.reshape(2, -1)[1], flat[place : place + count])
        assert count <= 40  # the rows of one head
        found.zero_()
        assert float(made._views["x"].flatten(1)[0, place]) == 0.0


def test_a_spot_of_an_output_has_only_elements() -> None:
    made = buffers()
    for place in (0.0, 0.37, 0.999):
        made.prepare()
        (spot,) = made.spots(place)
        spot.fill_(0)
        written = made.outputs()["out"] == 0.0
        assert 8 <= int(written.sum()) <= 40
        assert made.inspect().damage() == ""


def test_a_run_of_a_row_lies_in_one_row() -> None:
    view = torch.arange(60).view(1, 3, 4, 5)
    assert run_of(view, 23, 2).tolist() == [[23, 24]]
    assert run_of(view, 20, 15).tolist() == [
        [[20, 21, 22, 23, 24], [25, 26, 27, 28, 29], [30, 31, 32, 33, 34]]
    ]


FAR = (1 << 31) + 8
FAR_X = TensorSpec("x", (2, 1, 4, 8), "float16", strides=(FAR, 32, 8, 1))
FAR_OUT = TensorSpec("out", (1, 2, 4, 8), "float16", True, (2 * FAR, FAR, 8, 1))


def far_buffers(*specs: TensorSpec) -> BufferSets:
    inputs = {"x": torch.ones(2, 1, 4, 8, dtype=torch.float16)} if FAR_X in specs else {}
    try:
        return BufferSets(specs, NO_LAUNCH, [inputs], "cpu")
    except NoRoom:
        pytest.skip("no address space for 4 GiB")


def test_a_far_tensor_is_filled_poisoned_and_guarded_in_each_part() -> None:
    made = far_buffers(FAR_X, FAR_OUT)
    assert made.inspect().damage() == ""
    out = made.outputs()["out"]
    assert bool(unwritten(out).all())
    out.fill_(2.0)
    assert made.inspect().damage() == ""
    x = (ctypes.c_uint16 * 32).from_address(made.pointers()["x"] + 2 * FAR)
    assert set(x) == {0x3C00}  # 1.0
    poke(made.pointers()["x"] + 2 * FAR + 5)
    assert made.inspect().damage() == "changed its input x"


@pytest.mark.parametrize("offset", [-1, 64, 2 * FAR - 1, 2 * FAR + 64])
def test_a_write_beside_a_part_of_a_far_tensor_is_seen(offset: int) -> None:
    made = far_buffers(FAR_OUT)
    poke(made.pointers()["out"] + offset)
    inspection = made.inspect()
    assert inspection.damage() == "wrote outside out"
    assert bool(inspection.flags[1].any())


def test_far_tensors_go_alone_and_say_how_much_they_take() -> None:
    ones = torch.ones(2, 1, 4, 8, dtype=torch.float16)
    with pytest.raises(LaunchFailure, match="needs a set of its own"):
        BufferSets((FAR_X,), NO_LAUNCH, [{"x": ones}] * 2, "cpu")
    huge = TensorSpec("x", (2, 8), "float16", strides=(1 << 59, 1))
    with pytest.raises(NoRoom, match="GiB for x"):
        FarTensor(huge, 0x7FFA, lambda size: torch.empty(size, dtype=torch.uint8))
