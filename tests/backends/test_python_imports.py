"""The files that a Python module imports from its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from evotune.backends.base.python_imports import ModulePlace, imported_files
from evotune.backends.base.sources import fingerprint, read_sources
from evotune.errors import SpaceError

FILES = {
    "kernels/mlp.py": "import torch\nimport tiles\nfrom layers import linear, plain\n",
    "kernels/tiles.py": "def f():\n    import late\n",
    "kernels/late.py": "import mlp\n",
    "kernels/layers/__init__.py": "from .plain import Plain\n",
    "kernels/layers/plain.py": "from . import shared\nfrom ..outside import x\n",
    "kernels/layers/linear.py": "import layers.deep.wide as wide\n",
    "kernels/layers/shared.py": "",
    "kernels/layers/deep/__init__.py": "",
    "kernels/layers/deep/wide.py": "from .. import linear\n",
    "kernels/unused.py": "",
    "tiles.py": "",
}
USED = {name for name in FILES if name not in ("kernels/unused.py", "tiles.py")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_sources_have_all_that_is_imported_from_the_own_folder(root: Path) -> None:
    assert set(read_sources(root, "kernels/mlp.py")) == USED


def test_a_change_of_an_imported_file_changes_the_fingerprint(root: Path) -> None:
    before = fingerprint(read_sources(root, "kernels/mlp.py"))
    (root / "kernels/unused.py").write_text("x = 1\n")
    assert fingerprint(read_sources(root, "kernels/mlp.py")) == before
    (root / "kernels/layers/deep/wide.py").write_text("x = 1\n")
    assert fingerprint(read_sources(root, "kernels/mlp.py")) != before


def test_a_module_of_a_package_brings_the_package(root: Path) -> None:
    found = set(read_sources(root, "kernels/layers/linear.py"))
    assert found == {name for name in USED if name.startswith("kernels/layers/")}
    place = ModulePlace.of("kernels/layers/deep/wide.py", FILES.__contains__)
    assert (place.folder, place.name) == ("kernels", "layers.deep.wide")


def test_what_is_no_python_imports_nothing() -> None:
    assert imported_files("a.py", b"import b\ndef", {"b.py"}.__contains__) == ()


def test_an_import_that_leads_out_of_the_root_is_refused(root: Path, tmp_path: Path) -> None:
    inside = root / "kernels"
    (inside / "alien.py").symlink_to(Path(__file__))
    (inside / "mlp.py").write_text("import alien\n")
    with pytest.raises(SpaceError, match="lies outside the space's root"):
        read_sources(inside, "mlp.py")
