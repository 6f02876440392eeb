"""The live GPU's profile, and occupancy as the driver computes it (`make test-gpu`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evotune.backends.base.launch import CompileJob, DeviceProfile
from evotune.backends.cuda import gpu_profiles
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.backends.cuda.discovery import find_gpu
from evotune.backends.cuda.gpu_limits import occupancy

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu() -> DeviceProfile:
    found = find_gpu("auto")
    print(json.dumps(found.to_json(), indent=1))
    return found


def test_the_profile_is_complete(gpu: DeviceProfile) -> None:
    assert gpu.name.startswith("NVIDIA ")
    assert gpu.id.startswith("GPU-")
    assert gpu.driver
    assert gpu.attributes.keys() == gpu_profiles.named("l4").attributes.keys()
    assert all(value > 0 for value in gpu.attributes.values())


def test_a_model_known_by_name_has_the_limits_of_its_profile(gpu: DeviceProfile) -> None:
    name = next((n for n in gpu_profiles.names() if gpu_profiles.matches(n, gpu.name)), "")
    if not name:
        pytest.skip(f"no profile is named after {gpu.name}")
    known = gpu_profiles.named(name)
    assert gpu.arch == known.arch
    assert find_gpu(name) == gpu
    of_the_board = ("memory_bytes", "memory_gbps")  # these differ between boards of a model
    for attribute, value in known.attributes.items():
        if attribute in of_the_board:
            assert gpu.attributes[attribute] == pytest.approx(value, rel=0.1)
        else:
            assert gpu.attributes[attribute] == value, attribute
    assert gpu.peak_gflops == pytest.approx(known.peak_gflops, rel=0.15)


@pytest.mark.parametrize("threads", [32, 96, 128, 256, 1024])
@pytest.mark.parametrize("shared_bytes", [0, 10_000, 49_152])
@pytest.mark.parametrize("registers", [24, 40, 64])
def test_occupancy_is_the_driver_s(
    gpu: DeviceProfile, tmp_path: Path, threads: int, shared_bytes: int, registers: int
) -> None:
    cupy = pytest.importorskip("cupy")
    (tmp_path / "k.cu").write_text(
        'extern "C" __global__ void k(float *o, int n) { float s[48];\n'
        "for (int i = 0; i < 48; ++i) s[i] = o[i * n];\n"
        "for (int j = 0; j < n; ++j) for (int i = 0; i < 48; ++i) s[i] += s[(i + 1) % 48] * o[j];\n"
        "for (int i = 0; i < 48; ++i) o[i] = s[i]; }\n"
    )
    options = (f"--maxrregcount={registers}",)
    job = CompileJob("cuda", str(tmp_path), "k.cu", (), options, gpu.arch, "")
    figures = NvrtcCompiler().compile(job, tmp_path / "k.cubin", 60.0)
    assert isinstance(figures, dict)
    cupy.cuda.Device(0).use()
    cupy.cuda.runtime.free(0)
    module = cupy.RawModule(path=str(tmp_path / "k.cubin"))
    function = module.get_function("k").kernel
    expected = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
        function.ptr, threads, shared_bytes
    )
    found = occupancy(
        gpu.attributes,
        threads=threads,
        registers=figures["registers"],
        shared_bytes=shared_bytes,
    )
    assert found.blocks == expected
