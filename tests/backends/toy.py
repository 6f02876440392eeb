"""A backend in one file: a kernel is a Python function, called on views of CPU tensors.

A kernel's last argument is the number of float32 elements of each tensor before it. It gets the
parameters of its configuration by name.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from evotune.backends.base.backend import Backend
from evotune.backends.base.launch import CompileFailure, CompileJob, DeviceProfile, LaunchPlan
from evotune.backends.base.session import Compiler, Session
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.languages import Language
from evotune.trial import Json, OutcomeKind


class ToyCompiler:
    """Stores the source together with the configuration's values, if it is valid Python."""

    def version(self) -> str:
        return "toy 1"

    def compile(
        self, job: CompileJob, output: Path, timeout_s: float
    ) -> Mapping[str, Json] | CompileFailure:
        source = (Path(job.root) / job.source).read_text()
        try:
            compile(source, job.source, "exec")
        except SyntaxError as error:
            return CompileFailure(OutcomeKind.COMPILE_ERROR, str(error), "", 0.0)
        output.write_text(json.dumps({"source": source, "values": dict(job.defines)}))
        return {"code_bytes": len(source)}


class ToySession(CpuSession):
    """A CPU session that loads and binds Python functions."""

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        made = json.loads(path.read_text())
        file = path.with_suffix(".py")
        file.write_text(made["source"])
        spec = importlib.util.spec_from_file_location("toy_kernel", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = getattr(module, plan.entry)
        takes = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
        values = {name: value for name, value in made["values"].items() if name in takes}
        return functools.partial(kernel, **values)

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        import torch

        count = int(plan.arguments[-1].value)
        memory = ctypes.c_float * count
        views = [
            torch.frombuffer(memory.from_address(pointers[argument.name]), dtype=torch.float32)
            for argument in plan.arguments[:-1]
        ]
        return functools.partial(kernel, *views)


class ToyBackend(Backend):
    """Python functions on this machine."""

    name = "toy"
    languages = (Language(name="toy", suffixes=(".py",), needs="Python"),)
    requests = ("toy",)

    def profile(self, request: str, *, compile_only: bool = False) -> DeviceProfile:
        return DeviceProfile("toy machine", "toy", "toy", {"threads": 1})

    def compiler(self, language: str) -> Compiler:
        return ToyCompiler()

    def open_device(self, profile: DeviceProfile) -> Session:
        return ToySession()


BACKEND = ToyBackend()
