"""The calls of a recording: a table for people, YAML for `--cases`, spaces that compute them."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.errors import UsageError
from evotune.recorder._seen_calls import Listener, Make
from evotune.recorder.described_calls import SeenCall, described, label_of, mask_words
from evotune.runs.given_cases import SpaceAnswer, spaces_for, why_none
from evotune.space.reading.case_file import CaseEntry, read_cases
from evotune.util.files import whole_file
from evotune.util.words import counted, printable

if TYPE_CHECKING:
    from rich.table import Table

_MOST_ROWS = 40
_MOST_SPACES = 3
_LEAST_COLUMNS = 80
_COLUMNS = ("case", "mask", "dtype", "count", "of model", "spaces, or why none")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """Equal calls of attention.

    - `entry`: the case, with the other facts of the call under `entry.call`.
    - `count`: how often the program made the call.
    - `share`: the calls' share of the model's time; None if it was not measured.
    """

    entry: CaseEntry
    count: int
    share: float | None = None

    @property
    def label(self) -> str:
        """The case in the words of its problem, as runs and reports name it."""
        return label_of(self.entry)

    @property
    def mask(self) -> str:
        """The mask's kind and its sizes as broadcast, such as `padding 16x1x1x512`; "" for none."""
        return mask_words(self.entry)

    def answers(self, device: str = "auto") -> tuple[SpaceAnswer, ...]:
        """Whether each shipped space of attention can compute the case on the device."""
        return spaces_for(self.entry, device)

    def spaces(self, device: str = "auto") -> list[str]:
        """The shipped spaces that can compute the case on the device."""
        return [each.space for each in self.answers(device) if not each.why]

    def why_none(self, device: str = "auto") -> str:
        """Why no shipped space can compute the case on the device, in words; "" if one can."""
        return why_none(self.answers(device))


class Calls(Listener):
    """What a recording has heard, most frequent first. It can be read while it grows.

    `len` is the number of different calls, `count` that of all. `print` shows a table, `save`
    writes a file that `--cases` takes, and `Calls.load` reads it again. `device`: the device for
    which the table names spaces; a value of `--device`.
    """

    def __init__(self, device: str = "auto") -> None:
        self.device = device
        self.undescribed: Counter[str] = Counter()
        """Calls that could not be described, in words: the program made them all the same."""
        self._lock = threading.Lock()
        self._heard: dict[Hashable, _Tally] = {}
        self._loaded: list[RecordedCall] = []
        self._shares: dict[SeenCall, float] = {}

    def heard(self, key: Hashable, make: Make, *given: object) -> None:
        tally = self._heard.get(key)
        if tally is None:
            seen = make(*given)
            if seen is None:
                return
            with self._lock:
                tally = self._heard.setdefault(key, _Tally(seen))
        with self._lock:
            tally.count += 1

    def missed(self, words: str) -> None:
        with self._lock:
            self.undescribed[words] += 1

    def set_shares(self, shares: dict[SeenCall, float]) -> None:
        """Sets the shares of the model's time that equal calls took together."""
        self._shares = shares

    def __iter__(self) -> Iterator[RecordedCall]:
        counts: Counter[SeenCall] = Counter()
        with self._lock:
            for tally in self._heard.values():
                counts[tally.seen] += tally.count
        found = [
            RecordedCall(described(seen, count), count, self._shares.get(seen))
            for seen, count in counts.items()
        ]
        yield from sorted([*self._loaded, *found], key=lambda call: -call.count)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def count(self) -> int:
        """The number of all calls."""
        return sum(call.count for call in self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the calls as a file of cases: YAML if the path ends with .yaml or .yml, else JSON.
        `evotune run SPACE --cases FILE` takes those that the space can compute. Raises UsageError
        if the file cannot be written."""
        try:
            with whole_file(Path(path)) as file:
                file.write(self.text(Path(path).suffix).encode())
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error

    def text(self, suffix: str = ".yaml") -> str:
        """The content of a file of cases with this suffix."""
        entries = [_as_data(call) for call in self]
        if suffix in (".yaml", ".yml") and entries:
            return "".join(map(_in_yaml, entries))
        return "[" + ",\n".join(map(json.dumps, entries)) + "]\n"

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "auto") -> Calls:
        """The calls of a file that `save` wrote. SpaceError at the first mistake in it."""
        found = []
        for entry in read_cases(Path(path)):
            share = entry.call.get("share")
            number = float(share) if isinstance(share, int | float) else None
            found.append(RecordedCall(entry, int(entry.count), number))
        return cls.of(found, device)

    @classmethod
    def of(cls, found: Iterable[RecordedCall], device: str = "auto") -> Calls:
        """The calls of a list."""
        calls = cls(device)
        calls._loaded = list(found)
        return calls

    def rows(self) -> list[tuple[str, ...]]:
        """The table's cells, a row for each of different calls."""
        found: list[tuple[str, ...]] = []
        for call in self:
            share = "" if call.share is None else f"{call.share:.1%}"
            cells = (call.label, call.mask, call.entry.dtype or "", f"{call.count:,}", share)
            found.append((*cells, self._spaces_in_words(call)))
        return found

    def _spaces_in_words(self, call: RecordedCall) -> str:
        answers = call.answers(self.device)
        able = [each for each in answers if not each.why]
        if not able:
            return f"none: {why_none(answers)}"
        words = [_space_in_words(each) for each in able[:_MOST_SPACES]]
        more = len(able) - len(words)
        return ", ".join(words) + (f" and {more} more" if more else "")

    def remarks(self) -> Iterator[str]:
        """The remarks for a reader of the table, a line each."""
        calls = list(self)
        total = sum(call.count for call in calls)
        yield f"{counted(total, 'call')} of {counted(len(calls), 'case')}"
        if len(calls) > _MOST_ROWS:
            yield f"The table has the {_MOST_ROWS} most frequent cases; a saved file has all."
        if any(call.entry.call.get("function") == "nn fast path" for call in calls):
            yield (
                "Calls of PyTorch's fast path for nn.TransformerEncoderLayer and "
                "nn.MultiheadAttention are served by nobody else; "
                "torch.backends.mha.set_fastpath_enabled(False) makes them calls of SDPA."
            )
        for words, number in self.undescribed.items():
            yield f"{counted(number, 'call')} could not be described: {words}"

    def __rich__(self) -> Table:
        return _table(self.rows()[:_MOST_ROWS])

    def __str__(self) -> str:
        from rich.console import Console

        width = max(_LEAST_COLUMNS, shutil.get_terminal_size((100, 24)).columns)
        console = Console(file=io.StringIO(), width=width, color_system=None)
        if self:
            console.print(self)
        for remark in self.remarks():
            console.print(remark, markup=False, highlight=False)
        written = console.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in written.splitlines())

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def __repr__(self) -> str:
        return f"<{next(self.remarks())}>"


class _Tally:
    """A call and how often it was heard."""

    __slots__ = ("count", "seen")

    def __init__(self, seen: SeenCall) -> None:
        self.seen = seen
        self.count = 0


def _space_in_words(answer: SpaceAnswer) -> str:
    return f"{answer.space} (dtype: {answer.dtype})" if answer.dtype else answer.space


def _as_data(call: RecordedCall) -> dict[str, object]:
    entry = call.entry
    facts = {**entry.call} | ({} if call.share is None else {"share": round(call.share, 4)})
    return {
        "problem": entry.problem,
        "count": call.count,
        "shape": {**entry.shape},
        "variant": {**entry.variant},
        "dtype": entry.dtype,
        "call": facts,
    }


def _in_yaml(entry: dict[str, object]) -> str:
    """The entry as an item of a list. JSON's values are YAML's too."""
    lines = [f"{name}: {json.dumps(value)}" for name, value in entry.items() if value]
    return "- " + "\n  ".join(lines) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> Table:
    """A table of the rows; cells are taken literally. A column without cells is left out."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    shown = [at for at in range(len(_COLUMNS)) if any(row[at] for row in rows)]
    for at in shown:
        right = _COLUMNS[at] in ("count", "of model")
        table.add_column(_COLUMNS[at], justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(row[at])) for at in shown))
    return table
