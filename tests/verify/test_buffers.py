from __future__ import annotations

import ctypes
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.backends.base.launch import LaunchPlan, Workspace
from evotune.backends.base.session import LaunchFailure
from evotune.problems.problem import TensorSpec, torch_dtype
from evotune.verify.buffers import BufferSets, unwritten

NO_LAUNCH = LaunchPlan("f", (), (), ())


def _poke(address: int, value: int) -> None:
    ctypes.c_uint8.from_address(address).value = value


def damage(buffers: BufferSets) -> str:
    """The first damage in any set, "" if there is none; checks each set's flags as well."""
    inspection = buffers.inspect()
    found = [inspection.damage(number) for number in range(len(buffers))]
    for number, flags in enumerate(zip(*inspection.flags, strict=True)):
        assert any(flags) == bool(found[number] or inspection.not_zeroed(number))
    return next(filter(None, found), "")


@settings(derandomize=True, max_examples=40)
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
    buffers = BufferSets(specs, plan, [{"x": values}], "cpu")
    assert all(pointer % 256 == 0 for pointer in buffers.pointers().values())
    assert damage(buffers) == ""
    nbytes = {"x": sizes[0], "out": sizes[1], "scratch": sizes[2], "counter": 8}[name]
    _poke(buffers.pointers()[name] + (nbytes - 1 + distance if after else -distance), 0)
    assert damage(buffers) == f"wrote outside {name}"


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
def test_what_is_read_outside_of_8_bit_floats_is_nan(dtype: str) -> None:
    specs = (TensorSpec("x", (7,), dtype), TensorSpec("out", (9,), dtype, is_output=True))
    values = torch.ones(7).to(torch_dtype(dtype))
    buffers = BufferSets(specs, NO_LAUNCH, [{"x": values}], "cpu")
    first = buffers.elements("x", 0)
    storage = torch.tensor([], dtype=first.dtype).set_(first.untyped_storage())
    at = first.storage_offset()
    for band in (storage[at - 500 : at], storage[at + 7 : at + 507]):
        assert band.float().isnan().all()
    assert buffers.outputs()["out"].float().isnan().all()
    assert unwritten(buffers.outputs()["out"]).all()
    _poke(first.data_ptr() + 7, 0)
    assert damage(buffers) == "wrote outside x"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_what_is_read_outside_is_nan_and_writing_the_poison_there_is_noticed(dtype: str) -> None:
    """A kernel may read a row past the end of V and give it weight 0: 0 times NaN is NaN."""
    specs = (TensorSpec("x", (7,), dtype), TensorSpec("out", (9,), dtype, is_output=True))
    buffers = BufferSets(
        specs, NO_LAUNCH, [{"x": torch.ones(7, dtype=getattr(torch, dtype))}], "cpu"
    )
    storage = buffers.elements("x", 0).untyped_storage()
    for name in ("x", "out"):
        first = buffers.elements(name, 0)
        at = (first.data_ptr() - storage.data_ptr()) // first.element_size()
        around = torch.tensor([], dtype=first.dtype).set_(storage)
        count = 7 if name == "x" else 9
        outside = (around[at - 500 : at], around[at + count : at + count + 500])
        assert all(band.isnan().all() for band in outside)
        assert not any(unwritten(band).any() for band in outside)
        for address in (first.data_ptr() - 1, first.data_ptr() + count * first.element_size()):
            before = ctypes.c_uint8.from_address(address).value
            _poke(address, 0xFF ^ (before == 0xFF))
            assert damage(buffers) == f"wrote outside {name}"
            _poke(address, before)
    assert damage(buffers) == ""


def test_writing_all_of_the_payload_touches_no_guard() -> None:
    specs = (TensorSpec("out", (33,), "uint8", is_output=True),)
    buffers = BufferSets(specs, NO_LAUNCH, [{}], "cpu")
    for offset in range(33):
        _poke(buffers.pointers()["out"] + offset, offset)
    assert damage(buffers) == ""


def test_an_empty_buffer_has_guards_and_a_negative_one_is_refused() -> None:
    empty = (TensorSpec("x", (0,), "float32"), TensorSpec("out", (0, 3), "float32", True))
    buffers = BufferSets(empty, NO_LAUNCH, [{"x": torch.empty(0)}], "cpu")
    assert damage(buffers) == ""
    _poke(buffers.pointers()["out"], 0)
    assert damage(buffers) == "wrote outside out"
    plan = LaunchPlan("f", (), (Workspace("scratch", -1),), ())
    with pytest.raises(LaunchFailure, match="a buffer of -1 bytes"):
        BufferSets((), plan, [{}], "cpu")


def test_an_inspection_says_what_was_there_when_it_was_taken() -> None:
    specs = (TensorSpec("x", (4,), "float32"), TensorSpec("out", (4,), "float32", True))
    values = torch.ones(4)
    buffers = BufferSets(specs, NO_LAUNCH, [{"x": values}], "cpu")
    address = buffers.pointers()["x"]
    _poke(address + 3, 0)
    inspection = buffers.inspect()
    _poke(address + 3, 0x3F)  # as it was
    assert inspection.damage() == "changed its input x"
    assert damage(buffers) == ""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_poison_is_nan_and_what_was_not_written_is_counted(dtype: str) -> None:
    specs = (TensorSpec("out", (3, 5), dtype, is_output=True),)
    buffers = BufferSets(specs, NO_LAUNCH, [{}], "cpu")
    (out,) = buffers.outputs()["out"]
    assert torch.isnan(out).all()
    assert unwritten(out).sum() == out.numel() == (30 if dtype == "complex64" else 15)
    out[1] = 2.0
    assert unwritten(out).sum() == out.numel() * 2 // 3
    out.fill_(float("nan"))  # a computed NaN has other bits than the poison
    assert unwritten(out).sum() == 0
    buffers.prepare()
    assert unwritten(out).sum() == out.numel()


def test_inputs_are_compared_by_their_bits() -> None:
    specs = (TensorSpec("x", (4,), "float32"),)
    values = torch.tensor([0.0, float("nan"), 1.0, float("inf")])
    buffers = BufferSets(specs, NO_LAUNCH, [{"x": values}], "cpu")
    assert damage(buffers) == "", "NaN among the inputs is no damage"
    _poke(buffers.pointers()["x"] + 3, 0x80)  # 0.0 becomes -0.0, which equals it
    assert damage(buffers) == "changed its input x"
    buffers.overwrite_inputs({"x": values + 1})
    assert damage(buffers) == ""


def test_inputs_of_any_strides_are_laid_out_contiguously() -> None:
    specs = (TensorSpec("x", (2, 3), "float32"),)
    values = torch.arange(6.0).reshape(3, 2).T
    buffers = BufferSets(specs, NO_LAUNCH, [{"x": values}], "cpu")
    raw = (ctypes.c_float * 6).from_address(buffers.pointers()["x"])
    assert list(raw) == [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]
    assert damage(buffers) == ""


def test_scratch_memory_is_poisoned_before_each_launch_or_zeroed_once() -> None:
    plan = LaunchPlan(
        "f", (), (Workspace("scratch", 8, "poison"), Workspace("counter", 8, "zero_once")), ()
    )
    buffers = BufferSets((), plan, [{}], "cpu")
    scratch, counter = (
        (ctypes.c_uint8 * 8).from_address(buffers.pointers()[name])
        for name in ("scratch", "counter")
    )
    assert list(scratch) == [255] * 8
    assert list(counter) == [0] * 8
    assert buffers.inspect().not_zeroed() == ""
    scratch[0] = counter[7] = 1
    assert buffers.inspect().not_zeroed() == "counter"
    assert damage(buffers) == ""
    buffers.prepare()
    assert list(scratch) == [255] * 8
    assert counter[7] == 1


def _three_sets() -> BufferSets:
    specs = (TensorSpec("x", (2, 3), "float32"), TensorSpec("out", (5,), "float16", True))
    plan = LaunchPlan(
        "f", (), (Workspace("scratch", 100), Workspace("counter", 4, "zero_once")), ()
    )
    inputs = [{"x": torch.arange(6.0).reshape(3, 2).T + 10 * number} for number in range(3)]
    return BufferSets(specs, plan, inputs, "cpu")


def test_each_set_has_its_own_memory_and_inputs() -> None:
    buffers = _three_sets()
    payloads = {"x": 24, "out": 10, "scratch": 100, "counter": 4}
    taken = [
        (pointer, pointer + payloads[name])
        for number in range(3)
        for name, pointer in buffers.pointers(number).items()
    ]
    taken.sort()
    assert all(start % 256 == 0 for start, _ in taken)
    assert all(after >= end + (128 << 10) for (_, end), (after, _) in itertools.pairwise(taken))
    raw = (ctypes.c_float * 6).from_address(buffers.pointers(2)["x"])
    assert list(raw) == [20.0, 22.0, 24.0, 21.0, 23.0, 25.0]
    assert damage(buffers) == ""


@pytest.mark.parametrize("name", ["x", "out", "scratch", "counter"])
def test_damage_is_told_of_the_set_that_has_it(name: str) -> None:
    buffers = _three_sets()
    _poke(buffers.pointers(1)[name] - 300, 0)
    inspection = buffers.inspect()
    assert [inspection.damage(number) for number in range(3)] == ["", f"wrote outside {name}", ""]
    flags = torch.stack(inspection.flags).any(dim=0)
    assert flags.tolist() == [False, True, False]
    alone = buffers.only(1).inspect()
    assert alone.damage() == f"wrote outside {name}"
    assert buffers.only(2).inspect().damage() == ""


def test_no_byte_between_sets_is_unwatched() -> None:
    buffers = _three_sets()
    begin = buffers.pointers(1)["x"] - (128 << 10)  # of the second set's memory
    for place in range(begin - 4096, begin + 64, 64):
        _poke(place, 0)
        assert damage(buffers)
        _poke(place, 0xFF)  # the guard's byte at even places
    assert damage(buffers) == ""


def test_a_set_alone_is_the_same_memory() -> None:
    buffers = _three_sets()
    alone = buffers.only(1)
    assert alone.pointers() == buffers.pointers(1)
    alone.overwrite_inputs({"x": torch.ones(2, 3)})
    alone.outputs()["out"].fill_(2.0)
    assert buffers.outputs()["out"][:, 0].isnan().tolist() == [True, False, True]
    inspection = buffers.inspect()
    assert [inspection.damage(number) for number in range(3)] == ["", "", ""]
    _poke(buffers.pointers(1)["x"] + 3, 0)
    assert [buffers.inspect().damage(number) for number in range(3)] == [
        "",
        "changed its input x",
        "",
    ]
