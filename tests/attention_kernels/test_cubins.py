"""The machine code of the CUDA rungs is what it was: see `cubins`. Needs NVRTC, no GPU."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("cupy")

from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.errors import EnvironmentProblem
from evotune.trial import Json

from . import cubins

KEPT = json.loads(cubins.PATH.read_text())
SOON = ("attention-scalar l4 0", "attention-mma l4 0")


def _id(number: int) -> str:
    build = KEPT["builds"][number]
    before = KEPT["builds"][:number]
    same = [b for b in before if (b["space"], b["device"]) == (build["space"], build["device"])]
    return f"{build['space']} {build['device']} {len(same)}"


BUILDS = [
    pytest.param(build, id=_id(n), marks=() if _id(n) in SOON else pytest.mark.soak)
    for n, build in enumerate(KEPT["builds"])
]


@pytest.mark.parametrize("build", BUILDS)
def test_a_rung_is_the_same_machine_code(build: Json) -> None:
    """`make test` compiles two rungs, `make soak` all."""
    try:
        version = NvrtcCompiler().version()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    if version != KEPT["compiler"]:
        pytest.skip(f"the hashes are those of {KEPT['compiler']}")
    found = cubins.hashes(build["space"], build["device"], build["configuration"])
    assert found == build["sha256"], "python -m tests.attention_kernels.cubins, if that is meant"
