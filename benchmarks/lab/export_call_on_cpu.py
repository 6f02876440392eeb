"""Times the paths of `export_call.py` without a GPU: on a driver whose launches do nothing.

    python benchmarks/lab/export_call_on_cpu.py [--modes] [--rounds 400] [-o FILE]

The tensors lie in the CPU's memory, and a launch is a call of an empty function. So the times are
those of PyTorch's and the package's code on the host; compare them with each other only. With
`--modes` SDPA does nothing either, so that `extra_us` is the package's share of a call. It needs a
C++ compiler, and the repository's tests.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).parents[2]
NAME = "package_on_cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--modes", action="store_true", help="in several states of PyTorch")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(Path(__file__).parents[1])]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        write_package(Path(folder))
        sys.path.insert(0, folder)
        export_call = importlib.import_module("export_call")
        if arguments.modes:
            F.scaled_dot_product_attention = nothing
        result = export_call.measured(
            importlib.import_module(NAME), 0, 100, arguments.rounds, arguments.modes
        )
        result["command"] = "python benchmarks/lab/export_call_on_cpu.py"
        result["device"] = "CPU, empty kernel"
        result["ratios"].pop("package / SDPA", None)  # SDPA computes
        importlib.import_module("call_timing").show(result, arguments.output)


def nothing(*given: object, **named: object) -> None:
    """In SDPA's place: takes its arguments."""


def write_package(folder: Path) -> None:
    """A package whose only kernel does nothing, and the driver that launches it, in libcuda's place
    in this process."""
    packages = importlib.import_module("tests.export.runtime.packages")
    fake = importlib.import_module("tests.export.runtime.on_a_fake_driver")
    (folder / "empty.cpp").write_text('extern "C" void attention(void**) {}\n')
    kernel = built(folder / "empty.cpp", folder / "empty.so")
    soname = "-Wl,-soname,libcuda.so.1"
    driver = built(fake.HERE / "fake_driver.cpp", folder / "driver.so", "-DQUIET", soname)
    ctypes.CDLL(str(driver), mode=ctypes.RTLD_GLOBAL)
    device = {"backend": "cuda", "name": "Fake", "multiprocessors": 2}
    dispatch = packages.description(NAME, device=device)
    code = str(kernel).encode() + b"\0"  # the machine code of the fake driver
    pointers = [{"type": "tensor", "name": name} for name in ("q", "k", "v", "out")]
    scalars = [argument for argument in fake.ARGUMENTS if "value" in argument]
    plan = {**fake.PLAN, "arguments": [*pointers, *scalars], "workspaces": []}
    file, digest = "binaries/0.cubin", hashlib.sha256(code).hexdigest()
    dispatch["kernels"][0]["plan"] = plan
    dispatch["kernels"][0]["binaries"] = [{"fixed": {}, "file": file, "sha256": digest}]
    registry = importlib.import_module("evotune.backends.registry")
    launcher = registry.named("cuda").exported_files(NAME)["_cuda_launcher.py"]
    on_cpu = launcher + fake.ON_THE_CPU.encode()
    packages.write(folder, NAME, dispatch, {file: code, "_cuda_launcher.py": on_cpu})


def built(source: Path, output: Path, *options: str) -> Path:
    command = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", *options, str(source)]
    subprocess.run([*command, "-o", str(output)], check=True, timeout=120)
    return output


if __name__ == "__main__":
    main()
