"""Turns a Kernel Tuner script into a space: runs it, and records its call of `tune_kernel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from evotune.extras import Imported


class _Importer:
    def import_script(
        self,
        path: Path,
        *,
        name: str | None,
        kernel: str | None,
        outputs: Sequence[str],
        arguments: Sequence[str],
    ) -> Imported:
        from evotune.extras.kernel_tuner.importing import import_script  # only when it is used

        return import_script(path, name=name, kernel=kernel, outputs=outputs, arguments=arguments)


ROOM = _Importer()
