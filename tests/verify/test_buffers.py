from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.device.launch import LaunchPlan, Workspace
from evotune.device.protocol import LaunchFailure
from evotune.problems.base import TensorSpec
from evotune.verify.buffers import BufferSet, GuardedBuffer, unwritten

NO_LAUNCH = LaunchPlan("f", (), (), ())


def _poke(address: int, value: int) -> None:
    ctypes.c_uint8.from_address(address).value = value


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 4096), st.booleans())
def test_one_byte_outside_is_seen_wherever_it_is(nbytes: int, distance: int, after: bool) -> None:
    buffer = GuardedBuffer(nbytes, "cpu")
    assert buffer.pointer % 256 == 0
    buffer.fill(0)
    assert buffer.guards_intact()
    address = buffer.pointer + (nbytes - 1 + distance if after else -distance)
    _poke(address, 0)
    assert not buffer.guards_intact()


def test_writing_all_of_the_payload_touches_no_guard() -> None:
    buffer = GuardedBuffer(33, "cpu")
    for offset in range(33):
        _poke(buffer.pointer + offset, offset)
    assert buffer.guards_intact()


def test_an_empty_buffer_has_guards_and_a_negative_one_is_refused() -> None:
    assert GuardedBuffer(0, "cpu").guards_intact()
    with pytest.raises(LaunchFailure, match="a buffer of -1 bytes"):
        GuardedBuffer(-1, "cpu")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_poison_is_nan_and_what_was_not_written_is_counted(dtype: str) -> None:
    specs = (TensorSpec("out", (3, 5), dtype, is_output=True),)
    buffers = BufferSet(specs, NO_LAUNCH, {}, "cpu")
    out = buffers.outputs()["out"]
    assert torch.isnan(out).all()
    assert unwritten(buffers.outputs()["out"]) == 15
    out[1] = 2.0
    assert unwritten(buffers.outputs()["out"]) == 10
    out.fill_(float("nan"))  # a NaN that was computed is another one
    assert unwritten(buffers.outputs()["out"]) == 0
    buffers.poison()
    assert unwritten(buffers.outputs()["out"]) == 15


def test_inputs_are_compared_by_their_bits() -> None:
    specs = (TensorSpec("x", (4,), "float32"),)
    values = torch.tensor([0.0, float("nan"), 1.0, float("inf")])
    buffers = BufferSet(specs, NO_LAUNCH, {"x": values}, "cpu")
    assert buffers.damage() == "", "NaN among the inputs is no damage"
    _poke(buffers.pointers["x"] + 3, 0x80)  # 0.0 becomes -0.0, which equals it
    assert buffers.damage() == "changed its input x"
    buffers.overwrite_inputs({"x": values + 1})
    assert buffers.damage() == ""


def test_inputs_of_any_strides_are_laid_out_contiguously() -> None:
    specs = (TensorSpec("x", (2, 3), "float32"),)
    values = torch.arange(6.0).reshape(3, 2).T
    buffers = BufferSet(specs, NO_LAUNCH, {"x": values}, "cpu")
    raw = (ctypes.c_float * 6).from_address(buffers.pointers["x"])
    assert list(raw) == [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]
    assert buffers.damage() == ""


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
    assert buffers.not_zeroed() == ""
    scratch[0] = counter[7] = 1
    assert buffers.not_zeroed() == "counter"
    buffers.poison()
    assert list(scratch) == [255] * 8
    assert counter[7] == 1
