"""Builds a champion's CUDA sources again so that races show: with delays, and with late copies.

It runs as `python -m evotune.backends.cuda.perturbed_build JOB FOLDER`, where the file JOB has a
CompileJob: a compiler cannot be stopped from within, but its process can. For each way it writes
PTX into the folder, which the driver assembles when it loads it, or a file with the reason why
there is none.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.backends.cuda.ptx_delays import with_delays
from evotune.backends.cuda.ptx_late_copies import UnknownCopy, with_late_copies
from evotune.backends.cuda.tool_messages import PERTURBED_BUILD
from evotune.device.channel import UnreadableMessage, decode, encode
from evotune.device.launch import CompileFailure, CompileJob
from evotune.python_process import module_command

WAYS = {
    "delays": "with delays before and after barriers",
    "late": "with copies as late as may be",
}
_JOB = "job"
_SELF = "evotune.backends.cuda.perturbed_build"
_NO_REASON = "the build was given up"


def build(job: CompileJob, folder: Path, limit_s: float) -> dict[str, Path | str]:
    """Builds in a process of its own. Returns by way the file to load or why there is none."""
    (folder / _JOB).write_bytes(encode(job))
    try:
        subprocess.run(
            module_command(_SELF, str(folder / _JOB), str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return dict.fromkeys(WAYS, f"no build within {limit_s:g} s")
    return {way: _found(folder, way) for way in WAYS}


def _found(folder: Path, way: str) -> Path | str:
    if (path := folder / f"{way}.ptx").is_file():
        return path
    reason = folder / f"{way}.reason"
    return reason.read_text() if reason.is_file() else _NO_REASON


def main() -> None:
    job_file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        job = decode(PERTURBED_BUILD, job_file.read_bytes())
    except UnreadableMessage as error:
        _write(folder, dict.fromkeys(WAYS, f"the job cannot be read: {error}"))
        return
    ptx: str | CompileFailure
    if job.language == "cuda":
        ptx = NvrtcCompiler().ptx(job)
    else:
        _write(folder, dict.fromkeys(WAYS, f"{job.language} code is not rebuilt"))
        return
    if isinstance(ptx, CompileFailure):
        _write(folder, dict.fromkeys(WAYS, ptx.reason))
        return
    for way, rewrite in {"delays": with_delays, "late": with_late_copies}.items():
        try:
            made, places = rewrite(ptx)
        except UnknownCopy as error:
            _write(folder, {way: str(error)})
            continue
        if places:
            (folder / f"{way}.ptx").write_bytes(made.encode() + b"\0")  # the driver wants the NUL
        else:
            _write(folder, {way: "the kernel has no such place"})


def _write(folder: Path, reasons: dict[str, str]) -> None:
    for way, reason in reasons.items():
        (folder / f"{way}.reason").write_text(reason)


if __name__ == "__main__":
    main()
