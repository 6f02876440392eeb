"""The lines that give a kernel the names that Kernel Tuner would define for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from evotune.cli.kernel_tuner import expression_text as expressions
from evotune.cli.kernel_tuner.expression_text import NotWritten
from evotune.cli.kernel_tuner.kernel_source import KernelSource
from evotune.cli.kernel_tuner.launching import BLOCK_DEFAULTS
from evotune.cli.kernel_tuner.script import TuneCall
from evotune.cli.kernel_tuner.sizes import AXES, Sizes
from evotune.cli.kernel_tuner.tunables import Tunables


class Adapter:
    """`before` and `after` stand around the source; `define` are the sizes that are compiled in."""

    def __init__(
        self, source: KernelSource, tunables: Tunables, parameters: dict[str, str], sizes: Sizes
    ) -> None:
        self._source = source
        self._tunables = tunables
        self._sizes = sizes
        self.define = list(sizes.tunables.values())
        self.before: list[str] = []
        self.after: list[str] = []
        for name, parameter in parameters.items():
            self._name(name, parameter)
        for name, size in sizes.tunables.items():
            self._name(name, size.upper())

    def _name(self, name: str, macro: str) -> None:
        """A source that gives the name another value would be tuned for nothing."""
        words = [value for value in self._tunables[name] if isinstance(value, str)]
        for place, word in enumerate(words):
            condition = "#if" if place == 0 else "#elif"
            self.before += [f"{condition} {macro} == {macro}_{word.upper()}"]
            self.before += [f"#define {name} {word}"]
        if words:
            self.before.append("#endif")
            return
        if "loop_unroll_factor" in name:  # `#pragma unroll` takes no macro
            self.before.append(f"constexpr int {name} = {macro};")
        elif name != macro:
            self.before.append(f"#define {name} {macro}")
            if self._source.defines(name):
                message = f"the source gives {name} another value"
                self.after += [f"#ifdef {name}", f'static_assert({name} == {macro}, "{message}");']
                self.after.append("#endif")

    def add_launch(
        self, call: TuneCall, block_names: Sequence[str], grid: Sequence[ast.expr]
    ) -> None:
        """Block and grid, where the source names them: each is a macro for Kernel Tuner."""
        words = self._source.words
        for name, default in zip(block_names, BLOCK_DEFAULTS, strict=True):
            if name in words and name not in self._tunables:
                self.before.append(f"#define {name} {default}")
        if "kernel_tuner" in words:
            self.before.append("#define kernel_tuner 1")
        for axis, node in zip(AXES, grid, strict=True):
            if f"grid_size_{axis}" in words:
                self.before.append(f"#define grid_size_{axis} {self._grid_size(call, node)}")

    def _grid_size(self, call: TuneCall, node: ast.expr) -> str:
        """Over macros: the sizes in it are compiled in."""
        try:
            text = expressions.c_text(node)
        except NotWritten as reason:
            message = f"the source uses the grid's size, which is no expression of C: {reason}"
            raise call.error("problem_size", message) from reason
        for name in self._sizes.values:
            if re.search(rf"\b{name}\b", text):
                self.define += [] if name in self.define else [name]
                text = re.sub(rf"\b{name}\b", name.upper(), text)
        return text
