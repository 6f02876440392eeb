"""The executor of a space of kernels, with the run's own limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evotune.backends import registry
from evotune.runs.setup import KernelSetup
from evotune.workers.build_cache import writable_cache_dir
from evotune.workers.early_worker import EarlyWorker
from evotune.workers.in_flight import Twins
from evotune.workers.local import LocalExecutor, open_local_executor


def open_kernel_executor(
    setup: KernelSetup,
    folder: Path,
    twins: Twins | None = None,
    cores: Sequence[Sequence[int]] = (),
    early: EarlyWorker | None = None,
) -> LocalExecutor:
    """Its compilers and workers write their logs under `folder`. `cores` binds each device's worker
    to separate CPU cores. `early` may become a worker."""
    document = setup.document
    return open_local_executor(
        folder=folder,
        cache=writable_cache_dir(executable=registry.named(setup.profile.backend).loads_files),
        profiles=setup.devices,
        problem=setup.problem_spec.name,
        dtype=setup.problem_spec.dtype,
        root=setup.root,
        deterministic=document.deterministic,
        compile_timeout_s=document.timeouts.compile_s,
        trial_timeout_s=document.timeouts.trial_s,
        cores=cores,
        twins=twins,
        rules=setup.planner.rules,
        secret=setup.secret,
        early=early,
    )
