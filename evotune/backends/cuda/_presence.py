"""The NVIDIA GPUs of this machine, and whether torch and CuPy can use them.

The process that tunes calls `gpus_present` alone; `probe` calls the rest in a child process.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import warnings
from pathlib import Path

SYSTEM_ROOT = Path("/")
"""The folder that has /proc and /dev; tests set it to a made-up machine's."""

_NAMES_A_GPU = re.compile(r"\s*(?:[0-9]|GPU-|MIG-)", re.IGNORECASE)


def gpus_present() -> list[str]:
    """The names of this machine's NVIDIA GPUs, whether or not software can use them.

    The kernel driver's own list comes first, since it needs no library; then the device
    files, then nvidia-smi (containers and WSL may have only that). GPUs that
    CUDA_VISIBLE_DEVICES hides do not count.
    """
    if are_hidden():
        return []
    listed = [
        _model(info / "information")
        for info in sorted((SYSTEM_ROOT / "proc/driver/nvidia/gpus").glob("*"))
    ]
    if listed:
        return listed
    files = [
        path.name for path in sorted((SYSTEM_ROOT / "dev").glob("nvidia[0-9]*")) if path.exists()
    ]
    return files or _nvidia_smi()


def are_hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides all GPUs: CUDA stops at the first entry that names none.
    Slurm says `NoDevFiles` where a job has no GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and _NAMES_A_GPU.match(visible) is None


def _model(information: Path) -> str:
    try:
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "NVIDIA GPU"


def _nvidia_smi() -> list[str]:
    path = shutil.which("nvidia-smi")
    if not path:
        return []
    try:
        listing = subprocess.run(
            [path, "-L"], capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in listing.stdout.splitlines() if line.startswith("GPU ")]


def cuda_problem() -> str:
    """Why torch or CuPy cannot use the GPU, and the fix, in one line; "" when they can."""
    import torch

    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} has no CUDA support; "
            "fix: pip install --force-reinstall torch (a CUDA build)"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        words = str(caught[0].message).splitlines()[0] if caught else "no usable driver"
        return (
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) cannot use it ({words}); "
            "fix: update the NVIDIA driver, or install a torch built for an older CUDA"
        )
    major = torch.version.cuda.split(".")[0]
    extra = "cuda13" if int(major) >= 13 else "cuda12"
    if importlib.util.find_spec("cupy") is None:
        return f"CuPy is not installed; fix: pip install 'evotune[{extra}]'"
    return _cupy_problem(extra)


def _cupy_problem(extra: str) -> str:
    try:
        import cupy

        count = int(cupy.cuda.runtime.getDeviceCount())
    except (ImportError, OSError, RuntimeError, AttributeError, ValueError, TypeError) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return f"CuPy cannot use it ({line}); fix: pip install --force-reinstall 'evotune[{extra}]'"
    return "" if count else "CuPy finds no device; fix: check CUDA_VISIBLE_DEVICES"
