"""A package for another model of GPU. Its machine code would run on this one, too."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from evotune.export.exporting import export_runs
from evotune.runs.spaces import shipped_spaces
from tests.export.making import fabricated
from tests.export.runtime.packages import imported

pytestmark = pytest.mark.gpu

NAME = "foreign_attention"


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    here = torch.cuda.get_device_name()
    folder = tmp_path_factory.mktemp("foreign")
    run = fabricated(
        shipped_spaces()["attention-mma"], folder, "h100" if "H200" in here else "h200"
    )
    export_runs([run], folder / "package", NAME)
    with imported(folder / "package" / NAME) as module:
        yield module


def test_pytorch_serves_all_and_the_reason_is_said_once(foreign: ModuleType) -> None:
    q, k, v = torch.randn(3, 1, 8, 512, 64, device="cuda").half()
    expected = {
        causal: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        for causal in (False, True)
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for causal, wanted in expected.items():
            assert torch.equal(foreign.attention(q, k, v, is_causal=causal), wanted)
        with foreign.active():
            found = F.scaled_dot_product_attention(q, k, v)
            assert torch.equal(found, expected[False])
    reasons = [str(each.message) for each in said if "not served" in str(each.message)]
    assert len(reasons) == 1
    assert "the kernels are for NVIDIA H" in reasons[0]
    info = foreign.info()
    assert not info["device_matches"]
    assert info["calls"] == 0
    assert info["misses"]["device"]["count"] == 3


def test_its_check_fails(foreign: ModuleType) -> None:
    assert not foreign.check()
