"""Tensor maps: maps that the driver would refuse, plans that cross processes, encoding."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from evotune.backends.base.launch import Argument, Launch, LaunchPlan, TensorMap
from evotune.backends.base.session import LaunchFailure
from evotune.backends.cuda import _cuda_driver, cuda_kernel
from evotune.problems.problem import ELEMENT_BYTES

MAP = TensorMap("float16", (2, 8, 500, 64), (1, 1, 128, 64), 128, 256)


def test_a_map_of_attention_is_taken() -> None:
    assert MAP.violation() == ""
    assert MAP.strides_bytes() == (8 * 500 * 128, 500 * 128, 128)
    # A box may be larger than the tensor: elements outside it are read as zeros.
    assert msgspec.structs.replace(MAP, extents=(1, 1, 1, 64)).violation() == ""


def test_a_map_may_have_strides_of_its_own() -> None:
    laid_out = msgspec.structs.replace(MAP, strides=(500 * 8 * 64, 64, 8 * 64, 1))
    assert laid_out.violation() == ""
    assert laid_out.strides_bytes() == (500 * 8 * 128, 128, 8 * 128)
    odd = msgspec.structs.replace(MAP, strides=(500 * 8 * 64, 60, 8 * 64, 1))
    assert odd.violation().startswith("a stride of 120 bytes")
    far = msgspec.structs.replace(MAP, strides=(1 << 39, 64, 8 * 64, 1))
    assert "below 2^40" in far.violation()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"box": (1, 1, 512, 64)}, "a box size of 512; from 1 to 256 are possible"),
        ({"box": (1, 128, 64)}, "a box of 3 sizes for a tensor of 4 dimensions"),
        ({"box": (1, 1, 128, 128)}, "a box row of 256 bytes, more than the swizzle of 128"),
        ({"box": (1, 1, 128, 20)}, "a box row of 40 bytes, which is not a multiple of 16"),
        ({"swizzle_bytes": 96}, "swizzle of 96 bytes; expected one of 0, 32, 64, 128"),
        ({"l2_promotion_bytes": 512}, "L2 promotion of 512 bytes; expected one of"),
        ({"extents": (2, 8, 500, 60)}, "a stride of 120 bytes"),
        ({"extents": (2, 0, 500, 64)}, "an extent of 0"),
        ({"dtype": "float80"}, "a tensor map of float80"),
        ({"extents": (1,) * 6, "box": (1,) * 6}, "a tensor map of 6 dimensions"),
    ],
)
def test_what_the_driver_would_refuse_is_known_before(
    change: dict[str, object], words: str
) -> None:
    assert words in msgspec.structs.replace(MAP, **change).violation()  # type: ignore[arg-type]


def test_a_plan_with_maps_crosses_processes() -> None:
    arguments = (
        Argument("tensor_map", "q", tensor_map=MAP),
        Argument("tensor", "out"),
        Argument("float32", value=0.125),
    )
    plan = LaunchPlan("f", arguments, (), (Launch((3,), (128,), 64, "f"),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=LaunchPlan) == plan


def test_bytes_passed_by_value_are_aligned() -> None:
    for _ in range(16):
        encoded = cuda_kernel.aligned_bytes(128, 64)
        assert (ctypes.sizeof(encoded), ctypes.addressof(encoded) % 64) == (128, 0)


@pytest.fixture
def stand_in_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A library that writes its arguments where the driver would write the map."""
    source = tmp_path / "driver.c"
    source.write_text("""
    #include <stdint.h>
    int cuTensorMapEncodeTiled(uint64_t *map, int type, uint32_t rank, void *address,
        const uint64_t *extents, const uint64_t *strides, const uint32_t *box,
        const uint32_t *element_strides, int interleave, int swizzle, int promotion, int fill) {
      uint64_t words[16] = {type, rank, (uint64_t)address, extents[0], extents[3], strides[0],
        strides[2], box[0], box[1], box[3], element_strides[3], interleave, swizzle, promotion,
        fill};
      for (int i = 0; i < 16; ++i) map[i] = words[i];
      return address ? 0 : 1;
    }
    """)
    library = tmp_path / "driver.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    monkeypatch.setattr(cuda_kernel, "LIBRARY", str(library))
    cuda_kernel._encoder.cache_clear()
    yield
    cuda_kernel._encoder.cache_clear()


@pytest.mark.usefixtures("stand_in_driver")
def test_the_driver_is_asked_with_the_innermost_dimension_first() -> None:
    words = (ctypes.c_uint64 * 16).from_buffer(cuda_kernel.encode(MAP, 0x7000))
    assert list(words)[:7] == [6, 4, 0x7000, 64, 2, 128, 8 * 500 * 128]
    assert list(words)[7:15] == [64, 128, 1, 1, 0, 3, 3, 0]
    argument = Argument("tensor_map", "k", tensor_map=MAP)
    bound = (ctypes.c_uint64 * 16).from_buffer(cuda_kernel._value(argument, {"k": 0x7000}))
    assert list(bound) == list(words)
    with pytest.raises(LaunchFailure, match=r"the driver refuses TensorMap.*CUDA error 1"):
        cuda_kernel.encode(MAP, 0)


def test_a_driver_without_the_call_is_a_launch_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_kernel, "LIBRARY", "libm.so.6")
    cuda_kernel._encoder.cache_clear()
    with pytest.raises(LaunchFailure, match=r"CUDA 12\.0 or later"):
        cuda_kernel.encode(MAP, 0x7000)


def test_the_enumerations_are_those_of_the_headers() -> None:
    pytest.importorskip("cupy")
    from evotune.backends.cuda.compiler import include_folders

    headers = [folder / "cuda.h" for folder in include_folders()]
    text = next((h.read_text() for h in headers if os.path.exists(h)), "")
    if not text:
        pytest.skip("no cuda.h is installed")

    def members(name: str) -> list[str]:
        body = re.search(rf"^typedef enum {name}_enum {{(.*?)}}", text, re.DOTALL | re.MULTILINE)
        assert body is not None
        return re.findall(r"^ *CU_TENSOR_MAP_(\w+)", body.group(1), re.MULTILINE)

    types = members("CUtensorMapDataType")
    others = {"bool": "uint8", "int8": "uint8", "int16": "uint16", "complex64": "int64"}
    for dtype, value in cuda_kernel.DATA_TYPES.items():
        name = "uint8" if dtype.startswith("float8") else others.get(dtype, dtype)
        assert types[value] == f"DATA_TYPE_{name.upper()}"
    assert members("CUtensorMapSwizzle")[:4] == [
        *("SWIZZLE_NONE", "SWIZZLE_32B", "SWIZZLE_64B", "SWIZZLE_128B")
    ]
    assert members("CUtensorMapL2promotion")[3] == "L2_PROMOTION_L2_256B"


def test_every_type_has_a_map_and_exported_packages_have_the_same() -> None:
    assert cuda_kernel.DATA_TYPES.keys() == ELEMENT_BYTES.keys()
    assert cuda_kernel.DATA_TYPES == _cuda_driver._DATA_TYPES
    assert dict(ELEMENT_BYTES) == _cuda_driver._ELEMENT_BYTES


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "bool", "float8_e4m3", "float8_e5m2", "int32", "int64", "float64"]
)
def test_maps_of_integers_and_of_8_bits_count_their_bytes(dtype: str) -> None:
    size = {"int32": 4, "int64": 8, "float64": 8}.get(dtype, 1)
    made = TensorMap(dtype, (3, 32), (2, 16))
    assert made.violation() == ""
    assert made.strides_bytes() == (32 * size,)
    assert TensorMap(dtype, (3, 32), (2, 8)).violation() == (
        "a box row of 8 bytes, which is not a multiple of 16" if size == 1 else ""
    )
    assert TensorMap(dtype, (3, 24), (2, 16)).violation() == (
        "a stride of 24 bytes; multiples of 16 below 2^40 are possible" if size == 1 else ""
    )
