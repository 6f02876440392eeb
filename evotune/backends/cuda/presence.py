"""The NVIDIA GPUs of this machine, and whether torch and CuPy can use them.

The process that tunes calls only `gpus_present`. The child process of `probe` calls the rest.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import warnings
from pathlib import Path
from types import TracebackType

from evotune.errors import RunLocked

SYSTEM_ROOT = Path("/")
"""The folder that contains /proc and /dev. Tests set it to that of an invented machine."""

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


def only_gpu() -> str:
    """The id of this machine's GPU, as the kernel driver lists it; "" if it lists none or several,
    or if CUDA_VISIBLE_DEVICES may name a part of it."""
    folders = sorted((SYSTEM_ROOT / "proc/driver/nvidia/gpus").glob("*"))
    found = _fact(folders[0] / "information", "GPU UUID") if len(folders) == 1 else ""
    return found if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("0", found) else ""


def are_hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides all GPUs, because its first entry names none: CUDA stops
    at such an entry. Slurm sets `NoDevFiles` if a job has no GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and _NAMES_A_GPU.match(visible) is None


def _model(information: Path) -> str:
    return _fact(information, "Model") or "NVIDIA GPU"


def _fact(information: Path, name: str) -> str:
    """What the kernel driver says of a GPU under this name; "" for nothing."""
    try:
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


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
    """Why torch or CuPy cannot use the GPU, and the fix, in one line; "" if they can."""
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


# Lets one run at a time measure on a GPU: two would disturb each other's measurements.
FOLDER = Path("/tmp")
"""The folder of the locks. It is the same for every user, whatever TMPDIR is, because all users
share the GPU."""
_MODE = 0o644


class GpuLock:
    """An flock on a file named after the GPU. The system releases it when the process ends, however
    it ends."""

    def __init__(self, gpu_id: str) -> None:
        name = re.sub(r"[^A-Za-z0-9-]", "_", gpu_id) or "gpu"
        self._name = gpu_id
        self._path = FOLDER / f"evotune-{name}.lock"
        self._fd = -1

    def __enter__(self) -> GpuLock:
        """Raises RunLocked if another process measures on this GPU."""
        self._fd, writable = self._open()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._fd, 32).decode(errors="replace").strip()
            os.close(self._fd)
            who = f" (process {holder})" if holder.isdigit() else ""
            raise RunLocked(
                f"another evotune run is measuring on GPU {self._name}{who}; wait for it, "
                "or choose another GPU with --device cuda:N"
            ) from error
        if writable:
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{os.getpid()}\n".encode())
        return self

    def _open(self) -> tuple[int, bool]:
        """The open file, and whether this process may write it. Another user's file can be locked
        as well."""
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            found = os.open(self._path, flags | os.O_RDWR | os.O_CREAT, _MODE)
        except PermissionError:
            return os.open(self._path, flags | os.O_RDONLY), False
        if os.fstat(found).st_uid == os.geteuid():
            os.fchmod(found, _MODE)  # whatever this user's umask is: the file stays
        return found, True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
