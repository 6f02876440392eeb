from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.device.launch import LaunchPlan, Workspace
from evotune.device.protocol import LaunchFailure
from evotune.problems.base import TensorSpec
from evotune.verify.buffers import BufferSet, unwritten

NO_LAUNCH = LaunchPlan("f", (), (), ())


def _poke(address: int, value: int) -> None:
    ctypes.c_uint8.from_address(address).value = value


def damage(buffers: BufferSet) -> str:
    inspection = buffers.inspect()
    found = inspection.damage()
    assert any(inspection.flags) == bool(found or inspection.not_zeroed())
    return found


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 300)),
    st.sampled_from(["x", "out", "scratch", "counter"]),
    st.integers(1, 4096),
    st.booleans(),
)
def test_one_byte_outside_is_seen_wherever_it_is(
    sizes: tuple[int, int, int], name: str, distance: int, after: bool
) -> None:
    specs = (TensorSpec("x", (sizes[0],), "uint8"), TensorSpec("out", (sizes[1],), "uint8", True))
    workspaces = (Workspace("scratch", sizes[2]), Workspace("counter", 8, "zero_once"))
    plan = LaunchPlan("f", (), workspaces, ())
    values = torch.zeros(sizes[0], dtype=torch.uint8)
    buffers = BufferSet(specs, plan, {"x": values}, "cpu")
    assert all(pointer % 256 == 0 for pointer in buffers.pointers.values())
    assert damage(buffers) == ""
    nbytes = {"x": sizes[0], "out": sizes[1], "scratch": sizes[2], "counter": 8}[name]
    _poke(buffers.pointers[name] + (nbytes - 1 + distance if after else -distance), 0)
    assert damage(buffers) == f"wrote outside {name}"


def test_writing_all_of_the_payload_touches_no_guard() -> None:
    specs = (TensorSpec("out", (33,), "uint8", is_output=True),)
    buffers = BufferSet(specs, NO_LAUNCH, {}, "cpu")
    for offset in range(33):
        _poke(buffers.pointers["out"] + offset, offset)
    assert damage(buffers) == ""


def test_an_empty_buffer_has_guards_and_a_negative_one_is_refused() -> None:
    empty = (TensorSpec("x", (0,), "float32"), TensorSpec("out", (0, 3), "float32", True))
    buffers = BufferSet(empty, NO_LAUNCH, {"x": torch.empty(0)}, "cpu")
    assert damage(buffers) == ""
    _poke(buffers.pointers["out"], 0)
    assert damage(buffers) == "wrote outside out"
    plan = LaunchPlan("f", (), (Workspace("scratch", -1),), ())
    with pytest.raises(LaunchFailure, match="a buffer of -1 bytes"):
        BufferSet((), plan, {}, "cpu")


def test_an_inspection_says_what_was_there_when_it_was_taken() -> None:
    specs = (TensorSpec("x", (4,), "float32"), TensorSpec("out", (4,), "float32", True))
    values = torch.ones(4)
    buffers = BufferSet(specs, NO_LAUNCH, {"x": values}, "cpu")
    address = buffers.pointers["x"]
    _poke(address + 3, 0)
    inspection = buffers.inspect()
    _poke(address + 3, 0x3F)  # as it was
    assert inspection.damage() == "changed its input x"
    assert damage(buffers) == ""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_poison_is_nan_and_what_was_not_written_is_counted(dtype: str) -> None:
    specs = (TensorSpec("out", (3, 5), dtype, is_output=True),)
    buffers = BufferSet(specs, NO_LAUNCH, {}, "cpu")
    out = buffers.outputs()["out"]
    assert torch.isnan(out).all()
    assert unwritten(out).sum() == 15
    out[1] = 2.0
    assert unwritten(out).sum() == 10
    out.fill_(float("nan"))  # a NaN that was computed is another one
    assert unwritten(out).sum() == 0
    buffers.poison()
    assert unwritten(out).sum() == 15


def test_inputs_are_compared_by_their_bits() -> None:
    specs = (TensorSpec("x", (4,), "float32"),)
    values = torch.tensor([0.0, float("nan"), 1.0, float("inf")])
    buffers = BufferSet(specs, NO_LAUNCH, {"x": values}, "cpu")
    assert damage(buffers) == "", "NaN among the inputs is no damage"
    _poke(buffers.pointers["x"] + 3, 0x80)  # 0.0 becomes -0.0, which equals it
    assert damage(buffers) == "changed its input x"
    buffers.overwrite_inputs({"x": values + 1})
    assert damage(buffers) == ""


def test_inputs_of_any_strides_are_laid_out_contiguously() -> None:
    specs = (TensorSpec("x", (2, 3), "float32"),)
    values = torch.arange(6.0).reshape(3, 2).T
    buffers = BufferSet(specs, NO_LAUNCH, {"x": values}, "cpu")
    raw = (ctypes.c_float * 6).from_address(buffers.pointers["x"])
    assert list(raw) == [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]
    assert damage(buffers) == ""


def test_scratch_memory_is_poisoned_before_each_launch_or_zeroed_once() -> None:
    plan = LaunchPlan(
        "f", (), (Workspace("scratch", 8, "poison"), Workspace("counter", 8, "zero_once")), ()
    )
    buffers = BufferSet((), plan, {}, "cpu")
    scratch, counter = (
        (ctypes.c_uint8 * 8).from_address(buffers.pointers[name]) for name in ("scratch", "counter")
    )
    assert list(scratch) == [255] * 8
    assert list(counter) == [0] * 8
    assert buffers.inspect().not_zeroed() == ""
    scratch[0] = counter[7] = 1
    assert buffers.inspect().not_zeroed() == "counter"
    assert damage(buffers) == ""
    buffers.poison()
    assert list(scratch) == [255] * 8
    assert counter[7] == 1
