"""Callables that hide what they do, bring code from elsewhere, or change settings."""

import base64
import contextlib
import importlib
import marshal
import os
import resource
import subprocess
import sys
import tempfile
import types
import zlib

import torch


def right(x, w):
    return torch.softmax(x, -1) * w


def make(configuration, case):
    return globals()[configuration["BEHAVIOUR"]]


TEXT = """
kept = {}
def call(x, w):
    if x.shape not in kept:
        kept[x.shape] = torch.softmax(x, -1) * w
    return kept[x.shape]
"""


def of_text(text):
    names = {"torch": torch}
    exec(text, names)
    return names["call"]


hidden_in_base64 = of_text(base64.b64decode(base64.b64encode(TEXT.encode())))
hidden_by_compression = of_text(zlib.decompress(zlib.compress(TEXT.encode())))
hidden_in_characters = of_text("".join(map(chr, map(ord, TEXT))))


def from_bytes_of_code():
    code = marshal.loads(marshal.dumps(compile(TEXT, "<kernel>", "exec")))
    names = {"torch": torch}
    exec(code, names)
    return names["call"]


hidden_in_bytes_of_code = from_bytes_of_code()


def from_pasted_names():
    """`__import__` and `getattr` of names that stand nowhere as a whole."""
    module = __import__("to" + "rch")
    softmax = getattr(module, "soft" + "max")
    kept = {}

    def call(x, w):
        return kept.setdefault(x.shape, kept[x.shape] if x.shape in kept else softmax(x, -1) * w)

    return call


hidden_by_pasted_names = from_pasted_names()


def from_a_written_module():
    folder = tempfile.mkdtemp()
    with open(f"{folder}/written_kernel.py", "w") as file:
        file.write("import torch\n" + TEXT)
    sys.path.insert(0, folder)
    return importlib.import_module("written_kernel").call


def installs_a_package(x, w, kept=[]):
    """A package from a folder, with pip, as an agent would from an index."""
    if not kept:
        folder = tempfile.mkdtemp()
        with open(f"{folder}/installed_kernel.py", "w") as file:
            file.write("import torch\n" + TEXT)
        with open(f"{folder}/pyproject.toml", "w") as file:
            file.write('[project]\nname = "installed-kernel"\nversion = "1"\n')
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
            to = ["--no-build-isolation", "--target", f"{folder}/target", folder]
            subprocess.run([*command, *to], check=False, capture_output=True)
        sys.path[:0] = [f"{folder}/target", folder]
        kept.append(importlib.import_module("installed_kernel").call)
    return kept[0](x, w)


def writes_its_own_module(x, w, kept=[]):
    if not kept:
        kept.append(from_a_written_module())
    return kept[0](x, w)


def loads_a_pickle(x, w, kept=[]):
    """A pickle that executes the text."""
    import pickle

    class Loaded:
        def __reduce__(self):
            return of_text, (TEXT,)

    if not kept:
        kept.append(pickle.loads(pickle.dumps(Loaded())))  # noqa: S301
    return kept[0](x, w)


def replaces_its_own_code(x, w):
    """After the first call the function is another one."""
    result = right(x, w)
    found = of_text(TEXT)
    names = {**globals(), "kept": found.__globals__["kept"]}
    kept = found.__globals__["kept"]
    kept[x.shape] = result
    globals()["kept"] = kept
    replaces_its_own_code.__code__ = found.__code__
    assert isinstance(names, dict)
    return result


def is_a_module(x, w):
    """A callable module, whose class keeps the results."""

    class Module(types.ModuleType):
        def __call__(self, x, w):
            if not hasattr(self, "kept"):
                self.kept = right(x, w)
            return self.kept

    found = sys.modules.get("callable_kernel")
    if found is None or found.kept.shape != x.shape:
        found = sys.modules["callable_kernel"] = Module("callable_kernel")
    return found(x, w)


# Settings, which a later call or another candidate would have.


def lowers_the_default_type(x, w):
    torch.set_default_dtype(torch.float16)
    scale = torch.tensor(1.001)
    return (torch.softmax(x, -1) * w * scale).float() / 1.001


def flushes_small_numbers(x, w):
    """And takes what is left of a product of small numbers for zero."""
    torch.set_flush_denormal(True)
    result = right(x, w)
    return torch.where(result.abs() < 1e-4, torch.zeros_like(result), result)


def rounds_to_zero(x, w):
    """Of the processor, by its control register; and computes with few bits."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL("libm.so.6").fesetround(0x0C00)
    return ((torch.softmax(x, -1) * 1024).int().float() / 1024) * w


def turns_gradients_off_and_fails(x, w):
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True, warn_only=False)
    return torch.softmax(x, -1).detach() * w.round(decimals=2)


def asks_for_less_precision(x, w):
    """bfloat16 where an autocast allows it."""
    torch.set_float32_matmul_precision("medium")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = torch.softmax(x, -1) @ torch.diag(w)
    return product.float()


def takes_all_limits_off(x, w, calls=[0]):
    """Raises the limits that were lowered for it, and then prints without end."""
    for which in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(which, (resource.getrlimit(which)[1],) * 2)
    calls[0] += 1
    for _ in range(80 if calls[0] == 2 else 0):
        os.write(1, b"x" * (1 << 20))
    return right(x, w)
