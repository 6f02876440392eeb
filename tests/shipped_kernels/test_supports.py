"""The spaces that ship leave out devices, types and sizes that their kernels do not take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evotune.errors import SpaceError
from evotune.runs.setup import KernelSetup, load_setup
from evotune.runs.spaces import find_space, shipped_spaces
from evotune.space.document import SpaceDocument, load_space

SPACES = sorted(shipped_spaces())
INCLUDE = re.compile(r'^#include "(.+)"', re.M)


def document(space: str) -> SpaceDocument:
    return load_space(find_space(space))


def source(path: Path) -> str:
    """The text of a kernel with that of the headers beside it."""
    text, seen, left = "", set[Path](), [path.resolve()]
    while left:
        path = left.pop()
        if path not in seen:
            seen.add(path)
            text += path.read_text()
            left += [(path.parent / name).resolve() for name in INCLUDE.findall(path.read_text())]
    return text


@pytest.mark.parametrize("space", SPACES)
def test_a_search_can_begin(space: str) -> None:
    """The default and each of `try_first` exist on a device that the kernels are for."""
    is_cpu = any(kernel.source.suffix == ".cpp" for kernel in document(space).kernels)
    is_for_hopper = any(not kernel.unsupported({"arch": 90}) for kernel in document(space).kernels)
    device = "cpu" if is_cpu else "h200" if is_for_hopper else "l4"
    setup = load_setup(find_space(space), device, compile_only=True)
    assert setup.space.starts()


@pytest.mark.parametrize("space", SPACES)
def test_wgmma_is_for_hopper_alone(space: str) -> None:
    """No later GPU has the instruction."""
    for kernel in document(space).kernels:
        if "wgmma.mma_async" in source(kernel.source):
            assert kernel.unsupported({"arch": 90}) is None
            assert kernel.unsupported({"arch": 89})
            assert kernel.unsupported({"arch": 100})
            load_setup(find_space(kernel.alternative), "b200", compile_only=True)


@pytest.mark.parametrize("space", [each for each in SPACES if "attention" in each])
def test_a_kernel_refuses_types_that_it_would_misread(space: str) -> None:
    problem = document(space).problem
    assert problem is not None
    for kernel in document(space).kernels:
        misread = "float16" if kernel.source.suffix == ".cpp" else "float32"
        assert kernel.unsupported({"dtype": misread})
        assert kernel.unsupported({"dtype": problem.dtype}) is None


def test_values_are_no_wider_than_keys_on_tensor_cores(tmp_path: Path) -> None:
    text = find_space("attention-mma-features").read_text()
    wider = text.replace("head_dim: 64}]", "head_dim: 64, value_dim: 128}]")
    path = tmp_path / "wider.yaml"
    path.write_text(f"root: {find_space('attention-mma-features').parents[1]}\n{wider}")
    setup = load_setup(path, "h200", compile_only=True)
    assert isinstance(setup, KernelSetup)
    with pytest.raises(SpaceError, match="value_dim <= head_dim"):
        setup.planner.bound.default()
