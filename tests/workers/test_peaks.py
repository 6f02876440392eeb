"""No kernel is faster than its device can be; 8-bit products are faster than those of 16 bits."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from evotune.backends.base.launch import DeviceProfile
from evotune.problems import Tensor, UserProblem
from evotune.trial import Measurement
from evotune.workers.trial_runner import impossible, is_near_peak

PEAK = 989e3
PROFILE = DeviceProfile("GPU", "cuda", "", {}, peak_gflops=PEAK)
FLOPS = 10**12
FP16, FP8, BYTES = (
    Tensor((1,), "float16"),
    Tensor((1,), "float8_e4m3"),
    Tensor((1,), "uint8", range(256)),
)
SCALES = Tensor((1,), "float32")


def problem_of(inputs: Mapping[str, Tensor]) -> UserProblem:
    class Product(UserProblem):
        sizes = ("rows",)

        def inputs(self, rows: int) -> Mapping[str, Tensor]:
            return inputs

        def outputs(self, rows: int) -> Mapping[str, tuple[int, ...]]:
            return {"out": (rows,)}

        def operations(self, rows: int) -> int:
            return FLOPS

        def compute(self, **tensors: object) -> dict[str, object]:
            return {}

    return Product("float16")


@pytest.mark.parametrize(
    ("inputs", "times"),
    [
        ({"a": FP16, "b": FP16}, 1),
        ({"a": FP16, "codes": BYTES, "scales": SCALES}, 1),
        ({"a": FP8, "b": FP8, "scales": SCALES, "residual": FP16}, 2),
        ({"a": BYTES, "b": BYTES}, 2),
        ({"a": FP8}, 2),
    ],
)
def test_a_product_of_8_bits_may_be_twice_as_fast(inputs: Mapping[str, Tensor], times: int) -> None:
    problem = problem_of(inputs)
    case = problem.case({"rows": 1}, {})

    def measured(share: float) -> Measurement:
        time_us = FLOPS / (share * times * PEAK) / 1e3
        return Measurement("", time_us, time_us, "", 1.0, 1.0, 1.0, 1.0, 1)

    assert not impossible(measured(0.99), FLOPS, PROFILE, problem, case)
    why = impossible(measured(1.01), FLOPS, PROFILE, problem, case)
    assert why.endswith(f"is more than the device's peak of {times * 989000}")
    for share, near in ((0.84, False), (0.86, True)):
        tensors = problem.tensors(case)
        assert is_near_peak(measured(share), FLOPS, PROFILE, tensors) is near
