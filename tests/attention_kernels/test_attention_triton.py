"""The Triton kernel without a GPU: machine code that fits its launch, and right results."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytest.importorskip("triton")

from evotune.backends.base.launch import Argument, LaunchPlan
from evotune.backends.base.session import c_value
from evotune.backends.cuda.triton_compiler import TritonCompiler
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Configuration, Json
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
SHAPES = [
    {"batch": 1, "heads": 2, "kv_heads": 1, "seq_len_q": 37, "seq_len_k": 70, "head_dim": 64},
    {"batch": 2, "heads": 1, "seq_len": 65, "head_dim": 128},
]
_KPARAM_INFO = 0x17


@pytest.mark.soak
def test_sampled_configurations_pass_the_gate_in_the_interpreter(tmp_path: Path) -> None:
    checks = interpreted(tmp_path, SHAPES, trials=8, roles="timed,edge")
    assert len(checks) > 500
    assert not [check for check in checks if not check["passed"]]


def test_the_default_passes_the_gate_in_the_interpreter(tmp_path: Path) -> None:
    """Both masks, all kinds of inputs, grouped heads, lengths that no block divides."""
    checks = interpreted(tmp_path, SHAPES[:1], trials=1, roles="timed")
    assert len(checks) == 2 * 4
    assert not [check for check in checks if not check["passed"]]


def interpreted(
    folder: Path, shapes: list[dict[str, int]], *, trials: int, roles: str
) -> list[Json]:
    """The checks made, in float16: the interpreter multiplies bfloat16 as if it were integers."""
    if tuple(map(int, importlib.metadata.version("triton").split(".")[:2])) < (3, 7):
        pytest.skip("the interpreter of Triton 3.6 and older fails with NumPy 2.4 and newer")
    space = yaml.safe_load((ROOT / "search_spaces/attention_triton.yaml").read_text())
    space["root"] = str(ROOT)
    space["problem"] |= {"shapes": shapes, "held_out": []}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(space))
    command = ["-m", "tests.attention_kernels.interpreted", str(path), str(trials), roles]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("device", ["a100", "l4", pytest.param("h200", marks=pytest.mark.soak)])
def test_the_machine_code_takes_what_the_launch_passes(device: str, tmp_path: Path) -> None:
    planner = load_setup(find_space("attention-triton"), device, compile_only=True).planner
    assert planner is not None
    small = {"BLOCK_M": 32, "BLOCK_N": 16, "NUM_WARPS": 2, "NUM_STAGES": 1}
    configuration = Configuration({**planner.bound.default(), **small})
    case = planner.proposal(0, configuration).cases[0]
    found = TritonCompiler().compile(case.compile, tmp_path / "code", PATIENCE_S)
    assert isinstance(found, dict), found
    sizes = list(passed_bytes(case.plan))
    taken = taken_bytes((tmp_path / "code").read_bytes(), "attention_forward")
    assert taken == sizes[: len(taken)]
    assert len(taken) >= len(sizes) - 2  # Triton's scratch pointers: 2, in some versions 1
    (launch,) = case.plan.completed(found).launches
    assert launch.block == (64,)
    assert launch.shared_bytes == found["dynamic_shared_bytes"] > 0
    assert launch.entry in found["entries"]


def passed_bytes(plan: LaunchPlan) -> Iterator[int]:
    def passed(argument: Argument) -> int:
        is_pointer = argument.type in ("tensor", "workspace")
        return ctypes.sizeof(ctypes.c_void_p if is_pointer else c_value(argument))

    return map(passed, plan.arguments)


def taken_bytes(code: bytes, entry: str) -> list[int]:
    """The sizes of the parameters in order, from .nv.info, where the cubin tells the driver."""
    info = section(code, f".nv.info.{entry}")
    sizes, place = {}, 0
    while place < len(info):
        form, attribute = info[place : place + 2]
        length = struct.unpack_from("<H", info, place + 2)[0] if form == 4 else 0
        if attribute == _KPARAM_INFO:
            _, ordinal, _, packed = struct.unpack_from("<IHHI", info, place + 4)
            sizes[ordinal] = packed >> 18
        place += 4 + length
    return [sizes[ordinal] for ordinal in sorted(sizes)]


def section(code: bytes, name: str) -> bytes:
    """The contents of a section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", code, 40)
    count, names = struct.unpack_from("<HH", code, 60)
    headers = [struct.unpack_from("<IIQQQQ", code, table + 64 * i) for i in range(count)]
    strings = code[headers[names][4] :]
    for start, _, _, _, offset, size in headers:
        if strings[start : strings.index(b"\0", start)] == name.encode():
            return code[offset : offset + size]
    raise AssertionError(f"no section {name}")
