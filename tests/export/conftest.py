from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from evotune.backends.cpu import CpuBackend
from evotune.export.exporting import export_runs
from evotune.runs.folder import RunFolder
from tests.export.making import fabricated, tiny_space
from tests.export.runtime.registry import Registry


@pytest.fixture(scope="session", autouse=True)
def calls_that_cost_nothing() -> Iterator[None]:
    """Tiny kernels gain less than a call of a package costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuBackend, "exported_call_us", 0.0)
        yield


@pytest.fixture(scope="session")
def softmax_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A confirmed run of softmax on the CPU, made up but for its machine code."""
    folder = tmp_path_factory.mktemp("softmax")
    return fabricated(tiny_space("softmax-cpu", folder), folder)


@pytest.fixture(scope="session")
def attention_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The same of attention."""
    folder = tmp_path_factory.mktemp("attention")
    return fabricated(tiny_space("attention-cpu", folder), folder)


@pytest.fixture(scope="session")
def features_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module's folder of a package of attention-features-cpu."""
    folder = tmp_path_factory.mktemp("features")
    run = fabricated(tiny_space("attention-features-cpu", folder), folder)
    export_runs([run], folder / "package", "features_package")
    return folder / "package" / "features_package"


@pytest.fixture(scope="session")
def masks_cpu(attention_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module's folder of a package of attention-masks-cpu and attention-cpu."""
    folder = tmp_path_factory.mktemp("masks")
    run = fabricated(tiny_space("attention-masks-cpu", folder), folder)
    export_runs([attention_run, run], folder / "package", "masks_package")
    return folder / "package" / "masks_package"


@pytest.fixture(scope="session")
def attention_cpu(attention_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module's folder of a package of attention-cpu."""
    folder = tmp_path_factory.mktemp("package")
    export_runs([attention_run], folder, "attention_cpu_package")
    return folder / "attention_cpu_package"


@pytest.fixture
def registry(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A stand-in for transformers, with which the test's `package` is registered."""
    made = Registry(monkeypatch)
    package.register_transformers()
    return made
