"""Occupancy by the hardware's rules of allocation, and launches that a device refuses."""

from __future__ import annotations

import pytest

from evotune.backends.base.launch import Launch
from evotune.backends.cuda import gpu_profiles
from evotune.backends.cuda.gpu_limits import (
    Occupancy,
    launch_figures,
    launch_violation,
    occupancy,
    worst,
)

L4, A100, H200 = (dict(gpu_profiles.named(name).attributes) for name in ("l4", "a100", "h200"))

# device, threads, registers, shared bytes -> blocks a multiprocessor, share of its warps, bound
KNOWN = [
    (H200, 128, 128, 0, 4, 0.25, "registers"),  # 16,384 a block
    (H200, 128, 32, 0, 16, 1.0, "registers"),  # and threads
    (H200, 128, 31, 0, 16, 1.0, "registers"),  # they come in units of 256 a warp, 8 a thread
    (H200, 128, 24, 0, 16, 1.0, "threads"),
    (H200, 32, 16, 0, 32, 0.5, "blocks"),
    (H200, 1024, 64, 0, 1, 0.5, "registers"),
    (H200, 1024, 65, 0, 0, 0.0, "registers"),  # 32 warps of 2304 registers are more than 65536
    (H200, 96, 255, 0, 2, 0.09375, "registers"),  # 8 warps fit, 2 on each scheduler
    (H200, 128, 32, 65_536, 3, 0.1875, "shared memory"),  # 64 KiB and 1 KiB reserved, of 228
    (H200, 128, 32, 232_448, 1, 0.0625, "shared memory"),
    (H200, 128, 32, 232_449, 0, 0.0, "shared memory"),
    (H200, 33, 16, 0, 32, 1.0, "threads"),  # a partly filled warp counts as a whole one
    (L4, 128, 128, 0, 4, 4 * 4 / 48, "registers"),
    (L4, 128, 40, 0, 12, 1.0, "registers"),
    (L4, 64, 16, 0, 24, 1.0, "threads"),
    (L4, 1024, 32, 0, 1, 32 / 48, "threads"),
    (L4, 128, 32, 101_376, 1, 4 / 48, "shared memory"),
    (L4, 128, 32, 50_176, 2, 8 / 48, "shared memory"),  # 49 KiB and the reserved 1 KiB, twice
    (L4, 128, 32, 50_177, 1, 4 / 48, "shared memory"),
    (A100, 256, 168, 0, 1, 0.125, "registers"),
    (A100, 256, 128, 83_968, 1, 0.125, "shared memory"),
    (A100, 256, 128, 82_944, 2, 0.25, "registers"),  # and shared memory
]


@pytest.mark.parametrize(
    ("device", "threads", "registers", "shared", "blocks", "share", "bound_by"), KNOWN
)
def test_occupancy_is_what_the_scarcest_resource_allows(
    *,
    device: dict[str, int],
    threads: int,
    registers: int,
    shared: int,
    blocks: int,
    share: float,
    bound_by: str,
) -> None:
    found = occupancy(device, threads=threads, registers=registers, shared_bytes=shared)
    assert found == Occupancy(blocks, pytest.approx(share), bound_by)
    assert not found.fitting or min(found.fitting.values()) == found.fitting[bound_by] == blocks


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (Launch((1,), (1024,)), ""),
        (Launch((2**31 - 1, 65_535, 65_535), (1, 1, 64), 101_376), ""),
        (Launch((0,), (32,)), "grid.x is 0"),
        (Launch((2**31,), (32,)), "grid.x is 2147483648"),
        (Launch((1, 65_536), (32,)), "grid.y is 65536, but must be from 1 to 65535"),
        (Launch((1, 1, 70_000), (32,)), "grid.z is 70000"),
        (Launch((1,), (0,)), "block.x is 0"),
        (Launch((1,), (1, 1, 65)), "block.z is 65"),
        (Launch((1,), (64, 17)), "a block of 1088 threads, but the device takes 1024"),
        (Launch((1,), (32,), -1), "shared_bytes is -1"),
        (Launch((1,), (32,), 101_377), "101377 bytes of shared memory, but a block may have"),
    ],
)
def test_a_launch_that_the_device_refuses_is_known_before_compiling(
    launch: Launch, words: str
) -> None:
    found = launch_violation(launch, L4)
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_figures_are_those_of_the_function_that_is_launched() -> None:
    resources = {
        "registers": 255,
        "entries": {
            "main": {"registers": 255, "spill_store_bytes": 8, "spill_load_bytes": 4},
            "merge": {"registers": 16, "static_shared_bytes": 1024},
        },
    }
    main = launch_figures(Launch((1,), (128,), 0, "main"), resources, H200)
    assert (main.values["registers"], main.values["spill_bytes"]) == (255, 12)
    merge = launch_figures(Launch((1,), (1024,), 512, "merge"), resources, H200)
    assert (merge.violation, merge.values["shared_bytes_total"]) == ("", 1536)
    both = worst([main.values, merge.values])
    assert (both["registers"], both["static_shared_bytes"]) == (255, 1024)
    assert both["occupancy"] == main.values["occupancy"] == 0.125


def test_what_no_block_fits_is_a_violation() -> None:
    too_many = launch_figures(Launch((1,), (1024,), 0, "f"), {"registers": 128}, H200)
    assert too_many.violation.startswith("1024 threads of 128 registers, but a block may have")
    resources = {"registers": 32, "static_shared_bytes": 40_000}
    too_much = launch_figures(Launch((1,), (128,), 65_536, "f"), resources, L4)
    assert too_much.violation.startswith("105536 bytes of shared memory (40000 of them static)")


def test_before_ampere_blocks_reserve_no_shared_memory() -> None:
    t4 = gpu_profiles.named("t4").attributes
    whole = launch_figures(Launch((1,), (256,), 65_536, "f"), {"registers": 32}, t4)
    assert not whole.violation


def test_a_named_gpu_has_its_architecture_and_figures() -> None:
    assert {name: gpu_profiles.named(name).arch for name in gpu_profiles.names()} == {
        "l4": "sm_89",
        "a100": "sm_80",
        "h100": "sm_90a",
        "h200": "sm_90a",
        "b200": "sm_100a",
        "a10": "sm_86",
        "l40s": "sm_89",
        "rtx4090": "sm_89",
        "t4": "sm_75",
        "a100-40": "sm_80",
        "a100-80": "sm_80",
        "a30": "sm_80",
        "rtx3090": "sm_86",
        "l20": "sm_89",
        "h20": "sm_90a",
        "gh200": "sm_90a",
        "b300": "sm_103a",
        "rtx5090": "sm_120a",
        "rtxpro6000": "sm_120a",
        "gb10": "sm_121a",
    }
    assert (L4["multiprocessors"], L4["shared_bytes_per_block"]) == (58, 101_376)
    assert (A100["multiprocessors"], A100["shared_bytes_per_block"]) == (108, 166_912)
    assert (H200["multiprocessors"], H200["shared_bytes_per_block"]) == (132, 232_448)
    assert L4.keys() == A100.keys() == H200.keys()


@pytest.mark.parametrize(
    ("name", "found", "same"),
    [
        ("l4", "NVIDIA L4", True),
        ("l4", "NVIDIA L40", False),
        ("l4", "NVIDIA L40S", False),
        ("a100", "NVIDIA A100-SXM4-80GB", True),
        ("a100-80", "NVIDIA A100-SXM4-80GB", True),
        ("a100-40", "NVIDIA A100-SXM4-80GB", False),
        ("a100-40", "NVIDIA A100-PCIE-40GB", True),
        ("l20", "NVIDIA L20", True),
        ("h20", "NVIDIA H200", False),
        ("gh200", "NVIDIA GH200 480GB", True),
        ("rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("h100", "NVIDIA H200", False),
    ],
)
def test_a_model_is_known_by_the_driver_s_name(name: str, found: str, same: bool) -> None:
    assert gpu_profiles.matches(name, found) is same
