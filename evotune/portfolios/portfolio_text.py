"""A portfolio in Markdown, and the rows of its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evotune.portfolios._held_out_judge import Figures
from evotune.portfolios.portfolio_file import Portfolio
from evotune.util.harmless_text import markdown_text
from evotune.util.words import counted

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
    """The regions in their order; all other cases are PyTorch's."""
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
    """The kernels; of the second and later ones the parameters that differ from the first."""
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
    """Which cases, and by which part of the rule where single cases come before it."""
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
    """Lines below the tables."""
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
    """The whole portfolio, with the speedup of each case."""
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
