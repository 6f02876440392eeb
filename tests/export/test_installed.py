"""From tuning to use: packages are installed into a fresh environment without evotune."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

import evotune
from evotune.api.run import Run
from evotune.export.exporting import export_runs
from tests.api.small import kernel, keywords
from tests.runs.runs import brief_confirmations

from .making import fabricated, tiny_space, tuned, with_speedup

HEAD = """
import sys, warnings
sys.modules["evotune"] = None  # an import of it is an error
import torch
import torch.nn.functional as F
torch.manual_seed(0)
"""
SERVER = (
    HEAD
    + """
import gc, importlib, json, os

gc.freeze()  # else each fork looks at all of PyTorch when it ends
for line in sys.stdin:
    code, path = json.loads(line)
    pid = os.fork()
    if pid:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    with open(path, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    importlib.invalidate_caches()  # of before the packages were installed
    exec(compile(code, "code", "exec"))
    sys.exit()
"""
)


class Environment:
    """A virtual environment that sees PyTorch. Its first process imports PyTorch and computes
    nothing; codes run in forks of it, or alone in a new process."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
        self.site = site
        self._output = folder / "output"
        self._clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._server = subprocess.Popen(
            [str(self.python), "-P", "-c", SERVER], env=self._clean, cwd=site.parent,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> None:
        self._server.communicate()

    def install(self, package: Path) -> None:
        pip = [sys.executable, "-m", "pip", "-q", "--python", str(self.python)]
        command = [*pip, "install", "--no-index", "--no-deps", str(package)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def run_alone(self, code: str) -> str:
        done = subprocess.run(
            [str(self.python), "-P", "-c", HEAD + code],
            env=self._clean, cwd=self.site.parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, code: str) -> str:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([code, str(self._output)]), file=self._server.stdin, flush=True)
        status, said = self._server.stdout.readline(), self._output.read_text()
        assert status == "0\n", status + said
        return said


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    with closing(Environment(tmp_path_factory.mktemp("environment") / "venv")) as made:
        yield made


@pytest.fixture(scope="module", params=["made up", pytest.param("tuned", marks=pytest.mark.soak)])
def attention(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    environment: Environment,
) -> Path:
    """A run of attention-cpu, exported and installed as `tuned_attention`. `make soak` tunes it
    here in one trial; of the other run, the times are made up."""
    folder = tmp_path_factory.mktemp("attention")
    if request.param == "tuned":
        run = tuned("attention-cpu", folder)
    else:
        run = fabricated(tiny_space("attention-cpu", folder), folder)
    export_runs([run], folder / "pkg", "tuned_attention")
    environment.install(folder / "pkg")
    return folder / "pkg"


USE = """
import tuned_attention as package

q, k, v = (torch.randn(1, 2, 64, 32) for _ in range(3))
before = F.scaled_dot_product_attention
plain = before(q, k, v, is_causal=True)
out = package.attention(q, k, v, is_causal=True)
assert package.info()["calls"] == 1, package.info()
torch.testing.assert_close(out, plain)
torch.library.opcheck(torch.ops.tuned_attention.attention, (q, k, v))
with warnings.catch_warnings(record=True):
    warnings.simplefilter("always")
    masked = package.attention(q[:, :, :9], k, v)
assert torch.equal(masked, before(q[:, :, :9], k, v))
assert package.check()
assert "tuned_attention" in str(package.info()["package"])
print("done")
"""
MODEL = """
import tuned_attention as package
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)

    def heads(self, x):
        return x.unflatten(-1, (2, 32)).transpose(1, 2).contiguous()

    def forward(self, x):
        q, k, v = (self.heads(t) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(-2))


model, x = nn.Sequential(Block(), Block()).eval(), torch.randn(1, 64, 64)
with torch.no_grad():
    plain = model(x)
    with package.active():
        served = model(x)
    assert package.info()["calls"] == 2, package.info()["misses"]
    torch.testing.assert_close(served, plain)
    assert torch.equal(model(x), plain)
    package.activate()
    compiled = torch.compile(model, fullgraph=True, backend="eager")(x)
    package.deactivate()
    torch.testing.assert_close(compiled, plain)
print("done")
"""


def test_an_installed_package_serves_attention(attention: Path, environment: Environment) -> None:
    assert environment.run_alone(USE).endswith("done\n")


def test_it_serves_a_model(attention: Path, environment: Environment) -> None:
    assert environment.run(MODEL).endswith("done\n")


FEATURES = """
import features_package as package

q, k, v = torch.randn(1, 4, 64, 32), torch.randn(1, 2, 64, 32), torch.randn(1, 2, 64, 16)
slopes, sinks = torch.rand(4), torch.randn(4)
row, column = torch.arange(64)[:, None], torch.arange(64)
scores = q.double() @ k.repeat_interleave(2, 1).double().mT / 32**0.5
values = v.repeat_interleave(2, 1).double()


def close(found, scores, sink=None):
    whole = scores if sink is None else torch.cat([scores, sink.expand(1, 4, 64, 1)], -1)
    weights, lse = whole.softmax(-1)[..., :64], whole.logsumexp(-1)
    out, *more = found if isinstance(found, tuple) else (found,)
    torch.testing.assert_close(out, (weights @ values).float())
    for each in more:
        torch.testing.assert_close(each, lse.float())


def causal(left=64):
    return (column > row) | (column < row - left)


options = {"enable_gqa": True, "is_causal": True, "alignment": "bottom_right"}
capped = 30 * torch.tanh(scores / 30) - slopes.double()[:, None, None] * (row - column).abs()
for left, calls in ((100, 1), (12, 1)):  # the second is served by PyTorch
    out = package.attention(q, k, v, window=(left, None), sinks=sinks, **options)
    close(out, scores.masked_fill(causal(left), -torch.inf), sinks.double()[:, None, None])
    assert package.info()["calls"] == calls, package.misses()
found = package.attention(q, k, v, softcap=30.0, alibi_slopes=slopes, return_lse=True, **options)
close(found, capped.masked_fill(causal(), -torch.inf))
(text,) = package.info()["score_mods"]
changed = torch.where(
    torch.arange(4)[:, None, None] % 2 == 0,
    scores - 0.01 * (row - column).abs(),
    scores.clamp(max=4),
)
close(package.attention(q, k, v, enable_gqa=True, score_mod=text), changed)
assert package.info()["calls"] == 3, package.misses()
(missed,) = package.misses()
assert (missed["shape"]["window_left"], missed["shape"]["sinks"]) == (12, True)
assert package.check()
print("done")
"""


def test_features_are_served_and_the_rest_is_right(
    features_cpu: Path, environment: Environment
) -> None:
    found = environment.run(f"sys.path.insert(0, {str(features_cpu.parent)!r})\n{FEATURES}")
    assert found.endswith("done\n")


@pytest.mark.parametrize("file", ["dispatch.json", "binaries"])
def test_a_damaged_file_is_not_loaded(
    attention: Path, environment: Environment, tmp_path: Path, file: str
) -> None:
    shutil.copytree(attention / "tuned_attention", tmp_path / "tuned_attention")
    folder = tmp_path / "tuned_attention"
    damaged = [folder / file] if file != "binaries" else sorted((folder / file).iterdir())
    for path in damaged:
        path.write_bytes(path.read_bytes() + b" ")
    found = environment.run(
        f"""
sys.path.insert(0, {str(tmp_path)!r})
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import tuned_attention as package
    q = torch.randn(1, 2, 64, 32)
    out = package.attention(q, q, q)
assert torch.equal(out, F.scaled_dot_product_attention(q, q, q))
assert package.info()["calls"] == 0
print(*(str(each.message) for each in said))
"""
    )
    assert damaged[0].name in found or any(path.name in found for path in damaged)


def test_the_wheel_is_the_same_each_time_and_refuses_changed_files(
    attention: Path, environment: Environment, tmp_path: Path
) -> None:
    build = f"""
import os
os.chdir({str(attention)!r})
sys.path.insert(0, ".")
import _build
for folder in ("one", "two"):
    os.makedirs(os.path.join({str(tmp_path)!r}, folder), exist_ok=True)
    print(_build.build_wheel(os.path.join({str(tmp_path)!r}, folder)))
    print(_build.build_sdist(os.path.join({str(tmp_path)!r}, folder)))
"""
    wheel, sdist = environment.run(build).split()[:2]
    assert wheel.startswith("tuned_attention-1.0+b")
    for name in (wheel, sdist):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    names = zipfile.ZipFile(tmp_path / "one" / wheel).namelist()
    certificate = json.loads((attention / "tuned_attention" / "certificate.json").read_text())
    inside = {f"tuned_attention/{name}" for name in certificate["files"]}
    assert inside <= set(names)
    assert not [name for name in names if "__pycache__" in name]
    changed = tmp_path / "changed"
    shutil.copytree(attention, changed)
    (changed / "tuned_attention" / "dispatch.json").write_text("{}")
    pip = [sys.executable, "-m", "pip", "--python", str(environment.python), "install"]
    done = subprocess.run(
        [*pip, "--no-index", "--no-deps", str(changed)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "dispatch.json was changed since it was exported" in done.stdout + done.stderr


SOFTMAX = """
import tuned_softmax as package

for shape in ((16, 64), (3, 5), (1, 1)):
    x = torch.randn(shape)
    torch.testing.assert_close(package.softmax(x), x.softmax(dim=-1))
x = torch.randn(2, 3, dtype=torch.float64)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    torch.testing.assert_close(package.softmax(x), x.softmax(dim=-1))
assert "x is torch.float64, the kernels take torch.float32; the fallback" in str(said[0].message)
assert package.info()["calls"] == 3
print("done")
"""
SCALED = """
import scaled as package

x, y = torch.randn(5, 7), torch.randn(7)
found = package.scale_rows(x, y, factor=3.0)
torch.testing.assert_close(found["out"], 3 * x + y)
torch.testing.assert_close(found["sums"], (3 * x + y).sum(dim=1))
torch.testing.assert_close(package.scale_rows(x=x, y=y)["out"], 2 * x + y)
warnings.simplefilter("ignore")
for wrong in (lambda: package.scale_rows(x), lambda: package.scale_rows(x, torch.randn(6))):
    try:
        wrong()
    except (TypeError, RuntimeError) as error:  # of this package, and of PyTorch
        print(error)
    else:
        raise AssertionError
print("done")
"""


@pytest.mark.soak
def test_softmax_goes_the_same_way(tmp_path: Path, environment: Environment) -> None:
    run = fabricated(tiny_space("softmax-cpu", tmp_path), tmp_path)
    Run(run).export(tmp_path / "pkg", name="tuned_softmax")
    environment.install(tmp_path / "pkg")
    assert environment.run(SOFTMAX).endswith("done\n")


@pytest.mark.soak
def test_a_problem_of_ones_own_does_too(tmp_path: Path, environment: Environment) -> None:
    """The whole way in `make test`: tuned here, exported, installed and called."""
    runs = tmp_path / "runs"
    with brief_confirmations():
        run = evotune.tune(kernel(), trials=1, champions=1, runs_dir=runs, **keywords())
    with_speedup(run.folder, 1.2)
    assert run.export(tmp_path / "pkg", name="scaled") == tmp_path / "pkg"
    environment.install(tmp_path / "pkg")
    assert environment.run(SCALED).endswith("done\n")
