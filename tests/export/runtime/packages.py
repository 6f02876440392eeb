"""Small exported packages, written by hand."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import itertools
import json
import py_compile
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import evotune
from evotune.backends import registry
from evotune.backends.cpu import cpu_profile
from evotune.export.case_shapes import NONE
from evotune.export.descriptions import INIT
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
RUNTIME = Path(evotune.__file__).parent / "export" / "runtime"
_DEFINES = {
    "BLOCK_N": 64,
    "UNROLL": 8,
    "SCHEDULE_STATIC": 0,
    "SCHEDULE_DYNAMIC": 1,
    "SCHEDULE_GUIDED": 2,
    "SCHEDULE": 1,
    "CHUNK": 16,
}
HEAD_DIM = 16
_ARGUMENTS = [
    *({"type": "tensor", "name": name} for name in ("q", "k", "v", "out")),
    {"type": "float32", "value": {"name": "softmax_scale"}},
    *(
        {"type": "int32", "value": {"name": name}}
        for name in ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k")
    ),
]
STRIDES = tuple(
    f"{tensor}_stride_{dimension}"
    for tensor in ("q", "k", "v", "out")
    for dimension in ("batch", "head", "row")
)
_STRIDES = [{"type": "int64", "value": {"name": name}} for name in STRIDES]


@functools.cache
def compiled(folder: Path, causal: bool, text: str = "") -> Path:
    """The first rung of the attention kernels, or the source `text`, as a shared library."""
    source = ROOT / "kernels" / "attention" / "1_scalar.cpp"
    output = folder / f"{'strided' if text else 'scalar'}_{int(causal)}.so"
    if text:
        source = output.with_suffix(".cpp")
        source.write_text(text)
    defines = {**_DEFINES, "HEAD_DIM": HEAD_DIM, "CAUSAL": int(causal)}
    subprocess.run(
        [
            *("g++", "-std=c++17", "-O1", "-fopenmp", "-fPIC", "-shared", "-s"),
            *(f"-D{name}={value}" for name, value in defines.items()),
            str(source),
            *("-o", str(output)),
        ],
        check=True,
        timeout=PATIENCE_S,
    )
    return output


STRIDED = """
#include <algorithm>
#include <cmath>
#include <vector>
extern "C" void attention_strided(
    const float* q, const float* k, const float* v, float* out, float scale, int batch, int heads,
    int kv_heads, int rows, int keys, long qb, long qh, long qr, long kb, long kh, long kr, long vb,
    long vh, long vr, long ob, long oh, long orow) {
  for (int b = 0; b < batch; ++b)
    for (int h = 0; h < heads; ++h)
      for (int i = 0; i < rows; ++i) {
        const int g = h / (heads / kv_heads), seen = CAUSAL ? std::min(keys, i + 1) : keys;
        std::vector<double> weights(seen);
        double sum = 0, top = -1e30;
        for (int j = 0; j < seen; ++j) {
          double score = 0;
          for (int d = 0; d < HEAD_DIM; ++d)
            score += double(q[b * qb + h * qh + i * qr + d]) * k[b * kb + g * kh + j * kr + d];
          weights[j] = score * scale;
          top = std::max(top, weights[j]);
        }
        for (double& weight : weights) sum += weight = std::exp(weight - top);
        for (int d = 0; d < HEAD_DIM; ++d) {
          double value = 0;
          for (int j = 0; j < seen; ++j) value += weights[j] * v[b * vb + g * vh + j * vr + d];
          out[b * ob + h * oh + i * orow + d] = float(value / sum);
        }
      }
}
"""
"""A kernel that takes tensors with any distances between batches, heads and rows."""


def strided_kernel() -> dict[str, Any]:
    plan = {
        "entry": "attention_strided",
        "arguments": [*_ARGUMENTS, *_STRIDES],
        "workspaces": [],
        "launches": [],
    }
    return {"champion": 0, "source": STRIDED, "binaries": [], "plan": plan, "guards": []}


def strided_region(**values: Any) -> dict[str, Any]:
    sizes = {"batch": [1, 4], "heads": [1, 16], "seq_len_q": [1, 200], "seq_len_k": [1, 200]}
    return region(layout="strided", **sizes, **values)


def region(kernel: int = 0, near: bool = False, **values: Any) -> dict[str, Any]:
    """A region of the cases whose symbols have these values, or lie in these [low, high]."""
    ranges = {
        name: value if isinstance(value, list) else [value, value]
        for name, value in values.items()
        if name not in ("causal", "layout")
    }
    return {
        "kernel": kernel,
        "fixed": {"head_dim": HEAD_DIM, "causal": values.get("causal", False)},
        "ranges": ranges,
        "speedup_low": 1.5,
        "near": near,
        "layout": values.get("layout", "contiguous"),
    }


CASE = {"batch": 1, "heads": 4, "group": 2, "seq_len_q": 40, "seq_len_k": 40}
"""The one exact case of the package; causal too."""


def description(name: str, **changes: Any) -> dict[str, Any]:
    """A dispatch.json of attention on this machine's CPU."""
    profile = cpu_profile.profile()
    whole = {"batch": [1, 4], "heads": [1, 16], "seq_len_q": [1, 200], "seq_len_k": [1, 200]}
    return {
        "format": 1,
        "package": name,
        "problem": {
            "name": "attention",
            "inputs": ["q", "k", "v"],
            "outputs": ["out"],
            "dtype": "float32",
            "call": "attention",
        },
        "device": {
            "backend": profile.backend,
            "name": profile.name,
            "arch": profile.arch,
            "threads": torch.get_num_threads(),
        },
        "cases_from": {"attention": {}},
        "quantities": {"group": ["//", {"name": "heads"}, {"name": "kv_heads"}]},
        "shapes": {},
        "kernels": [
            {
                "champion": 0,
                "let": {"rows": ["*", {"name": "heads"}, {"name": "seq_len_q"}]},
                "binaries": [],
                "plan": {
                    "entry": "attention_forward",
                    "arguments": [*_ARGUMENTS, *_STRIDES],
                    "workspaces": [],
                    "launches": [],
                    "constant_memory": [],
                },
                "guards": [["<=", {"name": "rows"}, 3000]],
            }
        ],
        "served": [
            region(**CASE),
            region(causal=True, **CASE),
            region(near=True, **{**CASE, "seq_len_q": [36, 44], "seq_len_k": [36, 44]}),
        ],
        "domain": [region(**whole), region(causal=True, **whole)],
        **changes,
    }


def write(folder: Path, name: str, dispatch: Mapping[str, Any], files: Mapping[str, bytes]) -> Path:
    """The package's folder, made of the runtime's modules, the description and further files."""
    package = folder / name
    package.mkdir(parents=True)
    backend = registry.named(dispatch["device"]["backend"])
    contents = {
        "__init__.py": INIT.format(summary="A package for tests.").encode(),
        "dispatch.json": json.dumps(dispatch).encode(),
        **{path.name: path.read_bytes() for path in RUNTIME.glob("_*.py") if path.name[1] != "_"},
        **backend.exported_files(name),
        **files,
    }
    certificate = {
        "format": 1,
        "package": name,
        "device": dispatch["device"],
        "environment": {"packages": {"torch": torch.__version__}},
        "files": {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()},
    }
    contents["certificate.json"] = json.dumps(certificate).encode()
    for file, data in contents.items():
        path = package / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return package


def attention_package(folder: Path, binaries: Path, name: str, **changes: Any) -> Path:
    """A package of the CPU's scalar kernel, with and without the causal mask, or of the kernels
    given in `changes`."""
    dispatch = description(name, **changes)
    files = {}
    for kernel, causal in itertools.product(dispatch["kernels"], (False, True)):
        data = compiled(binaries, causal, kernel.get("source", "")).read_bytes()
        file = f"binaries/{hashlib.sha256(data).hexdigest()[:16]}.so"
        files[file] = data
        kernel["binaries"].append(
            {
                "fixed": {"head_dim": HEAD_DIM, "causal": causal},
                "file": file,
                "sha256": hashlib.sha256(data).hexdigest(),
                "resources": {},
            }
        )
    return write(folder, name, dispatch, files)


_FLAGS = ("causal", "bottom_right", "has_window", "has_softcap", "alibi", "sinks", "lse")
MODELS: Sequence[Mapping[str, bool]] = tuple(
    {"causal": True, "bottom_right": True, **dict.fromkeys(names, True)}
    for names in (
        ("has_window",),
        ("has_softcap",),
        ("has_window", "has_softcap"),
        ("sinks",),
        ("has_window", "sinks"),
    )
)
"""Sets of features that layers of models have."""


def package_for_models(folder: Path, binaries: Path, name: str) -> Path:
    """A package of the CPU's scalar kernel with the features of `MODELS`, for any lengths."""
    pointers = [
        {"type": "tensor", "name": tensor, "given": {"name": feature}}
        for tensor, feature in (("alibi_slopes", "alibi"), ("sinks", "sinks"), ("lse", "lse"))
    ]
    numbers = [
        *({"type": "int32", "value": {"name": f"window_{side}"}} for side in ("left", "right")),
        {"type": "float32", "value": {"name": "softcap"}},
    ]
    dispatch = description(name)
    (kernel,) = dispatch["kernels"]
    kernel["plan"]["arguments"] += [*pointers, *numbers]
    kernel["guards"], regions, files = [], [], {}
    for flags in MODELS:
        fixed = {"head_dim": HEAD_DIM, "value_dim": HEAD_DIM, **dict.fromkeys(_FLAGS, False)}
        fixed |= flags
        data = _compiled_for(binaries, fixed).read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        file = f"binaries/{sha256[:16]}.so"
        files[file] = data
        kernel["binaries"].append({"fixed": fixed, "file": file, "sha256": sha256, "resources": {}})
        given = {"window_left": flags.get("has_window"), "softcap": flags.get("has_softcap")}
        known = {name: fixed[name] for name in NONE if name in fixed}
        names = ", ".join(name for name, is_given in given.items() if is_given)
        sizes = {each: [1, 200] for each in ("batch", "heads", "seq_len_q", "seq_len_k")}
        made = region(layout="strided", causal=True, **sizes)
        regions.append(
            {**made, "fixed": {**NONE, **made["fixed"], **known, "value_dim": HEAD_DIM,
                               "given": names}}
        )  # fmt: skip
    dispatch |= {"served": regions, "domain": regions}
    return write(folder, name, dispatch, files)


def _compiled_for(folder: Path, fixed: Mapping[str, Any]) -> Path:
    """The first rung of the attention kernels with features, as a shared library."""
    output = folder / f"features_{''.join(str(int(fixed[flag])) for flag in _FLAGS)}.so"
    defines = {**_DEFINES, **{name.upper(): int(value) for name, value in fixed.items()}}
    source = ROOT / "kernels" / "attention" / "1_scalar.cpp"
    options = ("-std=c++17", "-O1", "-fopenmp", "-fPIC", "-shared", "-s")
    macros = [f"-D{name}={value}" for name, value in defines.items()]
    command = ["g++", *options, *macros, str(source), "-o", str(output)]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    return output


_byte_code: dict[bytes, bytes] = {}


def _with_byte_code(package: Path) -> None:
    """Gives the package the byte code of its modules. Most are those of earlier packages, and an
    import would compile them anew; it still checks them against the sources."""
    for source in package.glob("*.py"):
        target = Path(importlib.util.cache_from_source(str(source)))
        content = source.read_bytes()
        if content not in _byte_code:
            mode = py_compile.PycInvalidationMode.CHECKED_HASH
            py_compile.compile(str(source), str(target), invalidation_mode=mode)
            _byte_code[content] = target.read_bytes()
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(_byte_code[content])


def operators(package: ModuleType) -> Any:
    """The package's operators in torch.ops. Their namespace need not have the module's name: an
    earlier import may still have that one, until its garbage is collected."""
    found = torch
    for name in package.info()["operator"].split(".")[1:-1]:
        found = getattr(found, name)
    return found


@contextlib.contextmanager
def imported(package: Path) -> Iterator[ModuleType]:
    """The package's module. It is forgotten afterwards, by Dynamo too, and its hook is undone."""
    _with_byte_code(package)
    sys.path.insert(0, str(package.parent))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(package.name)
        yield module
        if hasattr(module, "deactivate"):
            module.deactivate()
    finally:
        sys.path.remove(str(package.parent))
        for name in [n for n in sys.modules if n.partition(".")[0] == package.name]:
            del sys.modules[name]
        _forget_imports_of(package.name)


def _forget_imports_of(package: str) -> None:
    """Dynamo keeps modules that it looked up by name: in a cache, and as variables of modules whose
    functions it compiled. The next import of the package has other modules."""
    dynamo = sys.modules.get("torch._dynamo.symbolic_convert")
    if dynamo is None:
        return
    dynamo._import_module.cache_clear()
    for module in list(sys.modules.values()):
        for alias in [
            each
            for each in getattr(module, "__dict__", ())
            if each.startswith(f"__import_{package}")
        ]:
            delattr(module, alias)
