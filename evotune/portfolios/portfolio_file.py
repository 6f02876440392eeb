"""Writes and reads `portfolio.json`: the kernels of a portfolio, the rule that serves cases with
them, the figures.

The matrix keeps the SHA-256 of the file, so a changed file is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from evotune.errors import StoreError, UsageError
from evotune.portfolios.matrix_store import Cell, Matrix, has_portfolio, read_matrix
from evotune.portfolios.rule import Cut, Figures, RuleRegion
from evotune.space.specs import GivenCase
from evotune.trial import Domain, Measurement, Outcome, Value
from evotune.util.commands import command_line
from evotune.util.files import read_regular
from evotune.util.words import counted, markdown_text

FORMAT = 1
FILE = "portfolio.json"
TEXT = "portfolio.md"
_SHA256 = "portfolio_sha256"
_MOST_BYTES = 1 << 28


class PortfolioCase(msgspec.Struct, frozen=True):
    """A case of the list. `baseline`: the baseline's name, "" if none could be timed. `searched`:
    the run of the case's own search."""

    label: str
    given: GivenCase
    held_out: bool
    baseline: str = ""
    searched: str = ""


class PortfolioKernel(msgspec.Struct, frozen=True):
    """A champion that the rule names. `domain`: its domain from its confirmation and from the
    matrix."""

    run: str
    trial: int
    configuration: Mapping[str, Value]
    domain: Domain


class CellRow(msgspec.Struct, frozen=True):
    """A champion on a case. `outcome`: ok, or how the gate refused the champion, which then does
    not serve the case."""

    case: str
    run: str
    trial: int
    outcome: str
    reason: str = ""
    time_us: float | None = None
    baseline_us: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None


class Portfolio(msgspec.Struct, frozen=True):
    """A finished portfolio.

    - `kernels`: the rule's regions refer to them by their index in this list.
    - `rule`: the first region that contains a case decides; PyTorch serves all other cases.
    - `alone`: the number of regions of single cases; they come first in `rule`.
    - `cuts`: parts of the rule that held-out and drawn cases showed to lose; they are not in
      `rule`.
    - `figures`: the rule's figures on the whole list (`listed`). Without its regions of single
      cases: on the cases from which it was made (`seen`), on the held-out cases (`held_out`), on
      cases drawn between the measured ones (`drawn`), and on the latter two before parts were cut
      out (`held_out_before`, `drawn_before`).
    - `of_own`: the geometric mean, over the searched cases, of speedup / own champion's speedup.
    - `unmeasured`: the number of cells without an outcome.
    """

    format: int
    space: str
    device: str
    problem: str
    dtype: str
    most_kernels: int
    seed: int
    skipped: str
    cases: tuple[PortfolioCase, ...]
    kernels: tuple[PortfolioKernel, ...]
    rule: tuple[RuleRegion, ...]
    cuts: tuple[Cut, ...]
    figures: Mapping[str, Figures]
    of_own: float | None
    unmeasured: int
    cells: tuple[CellRow, ...]
    alone: int = 0


def write_portfolio(runs_dir: Path, matrix: Matrix, found: Portfolio, text: str) -> None:
    """Writes the file, and the readable `text` next to it, each completely or not at all."""
    content = to_json(found)
    try:
        _write(runs_dir / TEXT, text.encode())
        matrix.store.set_meta(_SHA256, hashlib.sha256(content).hexdigest())
        _write(runs_dir / FILE, content)
    except OSError as error:
        raise UsageError(f"cannot write into {runs_dir}: {error.strerror or error}") from error


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


def to_json(found: Portfolio) -> bytes:
    """The content of `portfolio.json`."""
    return msgspec.json.format(msgspec.json.encode(found, enc_hook=_plain), indent=1) + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be encoded")


def portfolio_folder(named: Path) -> Path | None:
    """The folder of a portfolio, if `named` is such a folder or its `portfolio.json`; else None."""
    folder = named.parent if named.name == FILE else named
    return folder if has_portfolio(folder) else None


def read_portfolio(
    runs_dir: Path,
) -> tuple[Portfolio, Mapping[Cell, Measurement], Sequence[tuple[Cell, Outcome]]]:
    """The portfolio, the measurements of the timed cells, and the outcomes of the additional checks
    of champions: on other variants, and at served sizes. Raises UsageError for a portfolio that is
    not finished, and StoreError for a file that was changed."""
    path = runs_dir / FILE
    try:
        content = read_regular(path, _MOST_BYTES)
    except FileNotFoundError as error:
        text = f"the portfolio in {runs_dir} is not finished: give the same command again"
        raise UsageError(text) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    with read_matrix(runs_dir) as matrix:
        wanted = str(matrix.store.meta(_SHA256, ""))
        if hashlib.sha256(content).hexdigest() != wanted:
            line = command_line("portfolio", "--resume", runs_dir)
            raise StoreError(f"{path} was changed since it was written; `{line}` writes it anew")
        try:
            found = msgspec.json.decode(content, type=Portfolio)
        except msgspec.DecodeError as error:  # of another version
            raise StoreError(f"{path} cannot be read: {error}") from error
        checks = [item for item in matrix.cells.items() if not item[0].is_timed]
        return found, dict(_measured(matrix)), checks


def _measured(matrix: Matrix) -> Iterator[tuple[Cell, Measurement]]:
    for cell, outcome in matrix.cells.items():
        for measured in outcome.measurements if outcome.ok and cell.is_timed else ():
            if measured.counts:
                yield cell, measured


def cell_rows(matrix: Matrix) -> Iterator[CellRow]:
    """All outcomes, in the order of their cells."""
    timed = dict(_measured(matrix))
    for cell, outcome in sorted(matrix.cells.items(), key=lambda item: item[0]):
        if not cell.is_timed:
            continue
        row = CellRow(*cell, str(outcome.kind), outcome.reason)
        if cell in timed:
            m = timed[cell]
            row = CellRow(
                *(*cell, str(outcome.kind), "", m.time_us, m.baseline_us),
                *(m.speedup, m.speedup_low, m.speedup_high),
            )
        yield row


RULE_COLUMNS = ("", "cases", "kernel", "at least", "measured")
KERNEL_COLUMNS = ("kernel", "trial", "run", "configuration")
FIGURE_COLUMNS = ("cases", "number", "by kernels", "mean", "of best", "worst", "in")
_GROUPS = (
    ("listed", "listed"),
    ("seen", "seen by the rule"),
    ("held_out", "held out"),
    ("held_out_before", "held out, before the cuts"),
    ("drawn", "drawn between them, where losses are likely"),
    ("drawn_before", "drawn, before the cuts"),
)

Rows = list[tuple[str, ...]]


def rule_rows(found: Portfolio) -> Rows:
    """The regions in their order, as rows of a table; PyTorch serves all other cases."""
    rows: Rows = [
        (
            str(place),
            region.words,
            str(region.kernel),
            f"{region.speedup_low:.3f}x",
            str(len(region.cases)),
        )
        for place, region in enumerate(found.rule, 1)
    ]
    return [*rows, (str(len(rows) + 1), "all others", "PyTorch", "", "")]


def kernel_rows(found: Portfolio) -> Rows:
    """The kernels as rows of a table. The second and later ones show only the parameters that
    differ from the first."""
    rows: Rows = []
    for number, kernel in enumerate(found.kernels):
        first = found.kernels[0].configuration
        shown = {
            name: value
            for name, value in kernel.configuration.items()
            if number == 0 or first.get(name) != value
        }
        values = " ".join(f"{name}={value}" for name, value in shown.items())
        rows.append((str(number), str(kernel.trial), kernel.run, values))
    return rows


def figure_rows(found: Portfolio) -> Rows:
    return [
        (group_words(found, name, words), *_figures(figures))
        for name, words in _GROUPS
        if (figures := found.figures.get(name)) is not None
        and figures.cases
        and (not name.endswith("before") or found.cuts)
    ]


def group_words(found: Portfolio, name: str, words: str) -> str:
    """A name for a group of cases, which says by which part of the rule they are served if regions
    of single cases come before it."""
    is_whole = name == "listed" or name.endswith("before")
    return words if is_whole or not found.alone else f"{words}; without single cases"


def _figures(figures: Figures) -> tuple[str, ...]:
    return (
        str(figures.cases),
        str(figures.served),
        f"{figures.mean:.3f}x",
        f"{figures.of_best:.3f}",
        f"{figures.worst:.3f}x",
        figures.worst_case,
    )


def remarks(found: Portfolio) -> Iterator[str]:
    """The remarks below the tables, a line each."""
    yield (
        "mean: of speedups over PyTorch (weighted geometric mean); of best: of speedup / that of "
        "the best champion measured there; worst: the least speedup"
    )
    if found.of_own is not None:
        yield f"searched cases reach {found.of_own:.3f} of their own champion's speedup"
    for each in found.cuts:
        yield f"cut: {each.words}"
    if found.unmeasured:
        yield f"{counted(found.unmeasured, 'cell')} could not be measured: nothing is served there"
    if found.skipped:
        yield found.skipped


def markdown(found: Portfolio) -> str:
    """The whole portfolio as Markdown, with the speedup of each case."""
    return "\n".join(_parts(found)) + "\n"


def _parts(found: Portfolio) -> Iterator[str]:
    kernels = counted(len(found.kernels), "kernel")
    yield f"# {markdown_text(found.space)}: {kernels} for {counted(len(found.cases), 'case')}\n"
    device = markdown_text(found.device)
    yield f"On {device}, {found.dtype}. The first line that holds a case decides."
    yield "Ratios of sizes (heads to key heads, keys to queries) must be near those of measured"
    yield "cases.\n"
    yield from _table(RULE_COLUMNS, _as_markdown(rule_rows(found)))
    yield "## Figures\n"
    yield from _table(FIGURE_COLUMNS, _as_markdown(figure_rows(found)))
    yield from (f"- {markdown_text(line)}" for line in remarks(found))
    yield "\n## Kernels\n"
    yield from _table(KERNEL_COLUMNS, _as_markdown(kernel_rows(found)))
    yield "## Cases\n"
    yield "Speedup of each kernel over the baseline, with the lower end of its interval.\n"
    yield from _table(
        ("case", "weight", "baseline", *(str(n) for n in range(len(found.kernels)))),
        case_rows(found),
    )


def _as_markdown(rows: Rows) -> Rows:
    return [tuple(map(markdown_text, row)) for row in rows]


def case_rows(found: Portfolio) -> Rows:
    """The cases with each kernel's speedup, in Markdown."""
    cells = {(cell.case, cell.run, cell.trial): cell for cell in found.cells}
    rows: Rows = []
    for case in found.cases:
        speedups = []
        for kernel in found.kernels:
            cell = cells.get((case.label, kernel.run, kernel.trial))
            if cell is None:
                speedups.append("")
            elif cell.speedup is None or cell.speedup_low is None:
                speedups.append(cell.outcome)
            else:
                speedups.append(f"{cell.speedup:.3f} ({cell.speedup_low:.3f})")
        label = markdown_text(case.label)
        label = f"*{label}*" if case.held_out else label
        rows.append((label, f"{case.given.count:g}", markdown_text(case.baseline), *speedups))
    return rows


def _table(columns: Sequence[str], rows: Rows) -> Iterator[str]:
    """A table whose cells are Markdown."""
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""
