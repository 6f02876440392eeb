"""Installs packages for tests: a folder of modules and metadata on the search path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent


def install(
    site: Path, name: str, modules: Mapping[str, Path | str], points: Mapping[str, str]
) -> None:
    """Installs the package `name` into `site`.

    - modules: file name -> file or text
    - points: group and name of an entry point, such as `backends toy` -> its target
    """
    for file, source in modules.items():
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.read_text() if isinstance(source, Path) else source)
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for point, target in points.items():
        group, known = point.split()
        lines += [f"[evotune.{group}]", f"{known} = {target}"]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
