"""Hashes of 3_mma.cu's machine code for contiguous tensors: data/mma_cubins.json.

    python -m tests.attention_kernels.mma_binaries    # writes the table anew; minutes

A change that is not about contiguous tensors must leave the table as it is. The hashes cover the
functions' instructions, as those of `cubins`: a cubin's names have the kernel file's name in them.
"""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cuda.compiler import NvrtcCompiler, nvrtc_version
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Configuration
from tests.patience import PATIENCE_S

from .cubins import instruction_bytes

TABLE = Path(__file__).with_name("data") / "mma_cubins.json"
DEVICES = ("l4", "h200")  # sm_89 and sm_90a
_SPACES = {"attention-mma": 16, "attention-mma-decode": 10, "attention-mma-large": 14}


def drawn() -> list[dict[str, Any]]:
    """Configurations that every space accepts on both devices."""
    found = []
    for space, count in _SPACES.items():
        bounds = [_planner(space, device).bound for device in DEVICES]
        rng, wanted = random.Random(0), [dict(bounds[0].default())]
        while len(wanted) < count:
            configuration = bounds[0].sample(rng)
            if bounds[1].repair(configuration, random.Random(0)) == configuration:
                wanted.append(dict(configuration))
        found += [{"space": space, "configuration": values} for values in wanted]
    return found


def sha256(space: str, device: str, values: dict[str, Any], number: int) -> str:
    """Of the machine code for one of the timed cases, which take turns; "" where it does not
    compile."""
    jobs = _planner(space, device).compile_jobs(Configuration(values))
    job = jobs[number % len(jobs)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        if isinstance(NvrtcCompiler().compile(job, path, timeout_s=PATIENCE_S), CompileFailure):
            return ""
        return hashlib.sha256(instruction_bytes(path.read_bytes())).hexdigest()


def _planner(space: str, device: str) -> Any:
    key = (space, device)
    if key not in _planners:
        _planners[key] = load_setup(find_space(space), device, compile_only=True).planner
    return _planners[key]


_planners: dict[tuple[str, str], Any] = {}


def main() -> None:
    rows = drawn()
    for number, row in enumerate(rows):
        for device in DEVICES:
            row[device] = sha256(row["space"], device, row["configuration"], number)
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(json.dumps({"nvrtc": list(nvrtc_version()), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
