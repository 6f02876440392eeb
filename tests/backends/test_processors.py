"""A processor's name, its peak and the key of its machine code follow from /proc/cpuinfo."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from evotune.backends.base.launch import DeviceProfile
from evotune.backends.cpu import _cpu_launcher, cpp_compiler, cpu_profile


def arm(implementer: str, part: str, features: str) -> str:
    return f"""\
processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm {features}
CPU implementer\t: {implementer}
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: {part}
CPU revision\t: 1

"""


NEOVERSE_N1 = arm("0x41", "0xd0c", "lrcpc dcpop asimddp ssbs")
NEOVERSE_V1 = arm("0x41", "0xd40", "lrcpc dcpop asimddp sve asimdfhm svei8mm svebf16 i8mm bf16")
NEOVERSE_V2 = arm("0x41", "0xd4f", "asimddp sve asimdfhm sve2 svei8mm svebf16 i8mm bf16")
A64FX = arm("0x46", "0x001", "fcma dcpop sve")
ORYON = arm("0x51", "0x001", "lrcpc dcpop asimddp asimdfhm i8mm bf16")
X86 = """\
processor\t: 0
vendor_id\t: GenuineIntel
model\t\t: 79
model name\t: Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz
flags\t\t: fpu sse2 fma avx avx2 {}
bugs\t\t: spectre_v1

processor\t: 1
model name\t: Another
"""
On = Callable[[str, str], DeviceProfile]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> On:
    """Puts one thread of a processor into this machine's place and gives its profile."""
    read_text = Path.read_text

    def profile(machine: str, cpuinfo: str) -> DeviceProfile:
        def read(path: Path, *how: str, **named: str) -> str:
            return cpuinfo if str(path) == "/proc/cpuinfo" else read_text(path, *how, **named)

        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(Path, "read_text", read)
        return cpu_profile.profile.__wrapped__()

    return profile


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "name", "arch"),
    [
        ("x86_64", X86, "Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz", "x86_64-avx2"),
        ("aarch64", NEOVERSE_N1, "CPU implementer 0x41 part 0xd0c", "aarch64-simd128"),
        ("aarch64", NEOVERSE_V1, "CPU implementer 0x41 part 0xd40", "aarch64-sve"),
        ("riscv64", "isa\t: rv64gcv\n", platform.processor() or "riscv64", "riscv64-simd128"),
    ],
)
def test_a_processor_is_named_in_the_run_as_in_the_package(
    on: On, machine: str, cpuinfo: str, name: str, arch: str
) -> None:
    found = on(machine, cpuinfo)
    assert (found.name, found.arch) == (name, arch)
    refusal = _cpu_launcher._processor_refusal.__wrapped__
    assert refusal(found.name, found.arch) == ""
    assert "the kernels are for" in refusal("CPU implementer 0x41 part 0xd4f", found.arch)
    assert "the kernels are for" in refusal(found.name, "another")


@pytest.mark.parametrize(
    ("cpuinfo", "reached"),
    [
        (NEOVERSE_V1, 2.6 * 4 * 8 * 2),  # GHz, four units of 128 bits, float16
        (NEOVERSE_V2, 3.4 * 4 * 16 * 2),  # BFMMLA
        (ORYON, 4.0 * 4 * 16 * 2),
        (A64FX, 2.2 * 2 * 32 * 2),  # two units of 512 bits, float16
    ],
)
def test_no_right_kernel_is_above_the_peak(on: On, cpuinfo: str, reached: float) -> None:
    assert on("aarch64", cpuinfo).peak_gflops >= reached


@pytest.mark.parametrize(
    ("more", "flops"),
    [("", 32), ("avx512f", 64), ("avx512f avx512_bf16", 128), ("avx512f amx_bf16", 2048)],
)
def test_the_peaks_of_x86(on: On, more: str, flops: int) -> None:
    assert on("x86_64", X86.format(more)).peak_gflops == 6.5 * flops


def test_the_key_of_machine_code_has_the_features_of_the_processor(on: On) -> None:
    version = cpp_compiler._compiler_version.__wrapped__
    path = cpp_compiler.find_compiler()
    on("aarch64", NEOVERSE_N1)
    assert "asimdhp" in version(path).split()
    assert "sve" not in version(path).split()
    on("aarch64", NEOVERSE_V1)
    assert "sve" in version(path).split()
    on("x86_64", X86.format(""))
    assert version(path).endswith("avx avx2 fma fpu sse2")
