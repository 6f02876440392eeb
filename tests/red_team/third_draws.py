"""Counts the seeds whose drawn cases include one of each class of sizes of the third red team.

    python -m tests.red_team.third_draws [--seeds 10]

Runs no kernel: it looks at the cases that a trial of a search, and a champion's confirmation, would
have. A confirmation that is cut short may not come to all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from evotune.runs.setup import load_setup
from evotune.trial import Configuration
from evotune.workers.executor import RANDOM

from .cuda_expected import RIGHT
from .pipeline import SPACES

Symbols = Mapping[str, Any]
IsInClass = Callable[[Symbols], bool]


def _groups_of(*sizes: int) -> dict[str, IsInClass]:
    return {f"groups_of_{size}": _with_group(size) for size in sizes}


def _with_group(size: int) -> IsInClass:
    return lambda c: c["heads"] == size * c["kv_heads"]


def _with_pages_of(size: int) -> IsInClass:
    return lambda c: c["page_size"] == size


def _one_full_row(c: Symbols) -> bool:
    return c["seq_len_q"] == 1 and not c["causal"]


_MULTIPLES: IsInClass = lambda c: c["seq_len_k"] % 384 == 0  # noqa: E731
_ONE_MORE: IsInClass = lambda c: c["seq_len_k"] > 1 and c["seq_len_k"] % 256 == 1  # noqa: E731

CLASSES: dict[str, dict[str, IsInClass]] = {
    "sizes": {
        "one_full_row_with_groups": lambda c: _one_full_row(c) and c["heads"] > c["kv_heads"],
        "one_full_row_with_groups_of_5": lambda c: _one_full_row(c) and _with_group(5)(c),
        "long_with_many_heads": lambda c: c["seq_len_k"] > 600 and c["heads"] > 4,
        "long_with_many_batches": lambda c: c["seq_len_k"] > 600 and c["batch"] > 2,
        "long_with_groups_of_8": lambda c: c["seq_len_k"] > 600 and _with_group(8)(c),
        "eight_key_heads_with_groups": lambda c: c["kv_heads"] >= 8 and c["heads"] > c["kv_heads"],
        "heads_32_to_8": lambda c: (c["heads"], c["kv_heads"]) == (32, 8),
        "twice_as_many_rows_as_keys": lambda c: c["seq_len_q"] == 2 * c["seq_len_k"],
        "keys_63_mod_64_with_groups_of_4": lambda c: (
            c["seq_len_k"] % 64 == 63 and _with_group(4)(c)
        ),
        "rows_127_in_the_last_batch": lambda c: c["seq_len_q"] == 127 and c["batch"] > 1,
        "multiples_of_384_keys": _MULTIPLES,
        "keys_1_mod_256": _ONE_MORE,
    },
    "lengths": {
        "exactly_2047_keys": lambda c: c["seq_len_k"] == 2047,
        "multiples_of_384_keys": _MULTIPLES,
        "keys_1_mod_256": _ONE_MORE,
        "long_with_groups": lambda c: c["seq_len_k"] > 600 and c["heads"] > 2 * c["kv_heads"],
    },
    "paged": {
        **_groups_of(6, 7, 16),
        "five_key_heads": lambda c: c["kv_heads"] > 4,
        "ninth_sequence": lambda c: c["sequences"] > 8,
        "keys_from_512": lambda c: c["longest"] >= 512,
        "sixteen_queries": lambda c: c["queries"] >= 16,
        "pages_from_32767": lambda c: c["pages"] > 32767,
        **{f"pages_of_{size}": _with_pages_of(size) for size in (32, 128, 256)},
    },
    "packed": {
        **_groups_of(5, 6, 7, 16),
        "eighteenth_sequence": lambda c: c["sequences"] > 17,
        "rows_beyond_200": lambda c: c["longest_q"] > 200,
        "keys_beyond_400": lambda c: c["longest_k"] > 400,
        "tokens_from_8192": lambda c: c["tokens_q"] > 8192,
    },
    "row_sum": {
        "both_sizes_beyond_1000": lambda c: c["rows"] > 1000 and c["columns"] > 1000,
        "multiples_of_4096_columns": lambda c: c["columns"] % 4096 == 0,
        "elements_beyond_2_24": lambda c: c["rows"] * c["columns"] > 1 << 24,
        "columns_from_70000": lambda c: c["columns"] >= 70000,
    },
}
"""By topic and wrong kernel: whether a case, given by its symbols, is in the kernel's class."""


def drawn(topic: str, seed: int) -> list[tuple[str, Symbols]]:
    """The roles and symbols of a confirmation's cases."""
    setup = load_setup(SPACES / f"third_cpu_{topic}.yaml", "cpu")
    assert setup.planner is not None
    configuration = Configuration({**setup.planner.bound.default(), "BEHAVIOUR": RIGHT})
    proposal = setup.planner.proposal(seed, configuration, confirm=True)
    return [(job.role, job.case.symbols) for job in proposal.cases]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args().seeds)
    print("| topic | class | search | with confirmation |\n|---|---|---|---|")
    for topic, classes in CLASSES.items():
        plans = [drawn(topic, seed) for seed in seeds]
        for name, is_in_class in classes.items():
            searched = sum(any(is_in_class(s) for r, s in p if r != RANDOM) for p in plans)
            confirmed = sum(any(is_in_class(s) for _, s in p) for p in plans)
            print(f"| {topic} | {name} | {searched} | {confirmed} |")


if __name__ == "__main__":
    main()
