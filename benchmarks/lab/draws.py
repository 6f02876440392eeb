"""In how many champions the random tests meet a class of wrong kernels.

    python benchmarks/lab/draws.py [--seeds 20] [--held-out] [--root FOLDER --tests 100 100]

For each class of wrong kernels, as a condition on a case's sizes, and for each seed: whether one of
the cases that a confirmation draws fulfils it, among all and among the first half. The classes of
`HELD_OUT` were not used when the draws were written. No kernel runs. `--root` takes evotune from
another folder, to compare with an older version; `--tests` says how many tests it makes for one
kind of timed cases, such as a mask, and in all.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
Sizes = Mapping[str, Any]
Class = Callable[[Sizes], bool]

ATTENTION: dict[str, Class] = {
    "one row, groups": lambda s: s["q"] == 1 and s["group"] > 1 and s["k"] > 1,
    "one row, groups of 5": lambda s: s["q"] == 1 and s["group"] == 5,
    "one row, groups, more than 600 keys": lambda s: s["q"] == 1
    and s["group"] > 1
    and s["k"] > 600,
    "more than 600 keys, more than 4 heads": lambda s: s["k"] > 600 and s["heads"] > 4,
    "more than 600 keys, more than 4 key heads": lambda s: s["k"] > 600 and s["kv_heads"] > 4,
    "more than 600 keys, batch > 2": lambda s: s["k"] > 600 and s["batch"] > 2,
    "more than 600 keys, groups of 8": lambda s: s["k"] > 600 and s["group"] == 8,
    "8 or more key heads with groups": lambda s: s["kv_heads"] >= 8 and s["group"] > 1,
    "32/8 heads": lambda s: (s["heads"], s["kv_heads"]) == (32, 8),
    "twice as many rows as keys": lambda s: s["q"] == 2 * s["k"],
    "at least twice as many rows": lambda s: s["q"] >= 2 * s["k"] > 2,
    "63 mod 64 keys, groups of 4": lambda s: s["k"] % 64 == 63 and s["group"] == 4,
    "63 mod 64 rows, groups of 4": lambda s: s["q"] % 64 == 63 and s["group"] == 4,
    "127 rows, more batches": lambda s: s["q"] == 127 and s["batch"] > 1,
    "127 mod 128 rows, more batches": lambda s: s["q"] % 128 == 127 and s["batch"] > 1,
    "2,047 keys": lambda s: s["k"] == 2047,
    "multiples of 384 keys": lambda s: s["k"] % 384 == 0,
    "multiples of 384 rows": lambda s: s["q"] % 384 == 0,
    "1 mod 256 keys, several": lambda s: s["k"] % 256 == 1 < s["k"],
    **{
        f"{n} keys": lambda s, n=n: s["k"] == n for n in (129, 257, 513, 1025)
    },
    **{
        f"{q}/{k} heads, {name}": lambda s, q=q, k=k, w=w: (s["heads"], s["kv_heads"]) == (q, k)
        and w(s)
        for q, k in ((8, 8), (16, 16), (14, 2), (32, 8), (32, 32), (64, 8))
        for name, w in {
            "one row": lambda s: s["q"] == 1 and s["k"] > 600,
            "rows": lambda s: s["q"] > 4 and s["k"] > 4,
        }.items()
    },
}  # fmt: skip
HELD_OUT: dict[str, Class] = {
    "31 mod 32 keys, groups of 3": lambda s: s["k"] % 32 == 31 and s["group"] == 3,
    "1 mod 32 rows, groups of 6": lambda s: s["q"] % 32 == 1 < s["q"] and s["group"] == 6,
    "one row, 16 or more key heads": lambda s: s["q"] == 1 and s["kv_heads"] >= 16,
    "one row, batch 3": lambda s: s["q"] == 1 and s["batch"] == 3,
    "2 to 8 rows, groups of 8": lambda s: 2 <= s["q"] <= 8 and s["group"] == 8,
    "1 mod 128 keys, 3 key heads": lambda s: s["k"] % 128 == 1 < s["k"] and s["kv_heads"] == 3,
    "multiples of 64 keys, batch > 4": lambda s: s["k"] % 64 == 0 and s["batch"] > 4,
    "multiples of 64 rows and keys": lambda s: s["k"] % 64 == 0 == s["q"] % 64,
    "more than 256 keys, groups of 7": lambda s: s["k"] > 256 and s["group"] == 7,
    "more than 300 rows, groups of 2": lambda s: s["q"] > 300 and s["group"] == 2,
    "more than 100 heads": lambda s: s["heads"] > 100,
    "three times as many rows": lambda s: s["q"] >= 3 * s["k"] > 3,
    "4 batches and 4 key heads": lambda s: s["batch"] == 4 and s["kv_heads"] == 4,
    "16 rows or fewer, 1,000 keys": lambda s: 1 < s["q"] <= 16 and s["k"] > 1000,
    "255 keys": lambda s: s["k"] == 255,
    "1,024 rows": lambda s: s["q"] == 1024,
    "multiples of 320 keys": lambda s: s["k"] % 320 == 0,
}

PAGED: dict[str, Class] = {
    **{f"groups of {n}": lambda s, n=n: s["group"] == n for n in (6, 7, 16)},
    "more than 4 key heads": lambda s: s["kv_heads"] > 4,
    "9 sequences": lambda s: s["sequences"] == 9,
    "512 keys": lambda s: s["longest"] == 512,
    "16 rows": lambda s: s["queries"] == 16,
    "more than 32,767 pages": lambda s: s["pages"] > 32_767,
    "one row, groups, more than 600 keys": lambda s: s["queries"] == 1
    and s["group"] > 1
    and s["longest"] > 600,
    "63 mod 64 keys, groups of 4": lambda s: s["longest"] % 64 == 63 and s["group"] == 4,
    "32/8 heads": lambda s: (s["heads"], s["kv_heads"]) == (32, 8),
}  # fmt: skip
PAGE_SIZES: dict[str, Class] = {
    f"pages of {n}": lambda s, n=n: s["page_size"] == n for n in (32, 128, 256)
}
PACKED: dict[str, Class] = {
    **{f"groups of {n}": lambda s, n=n: s["group"] == n for n in (5, 6, 7, 16)},
    "more than 17 sequences": lambda s: s["sequences"] > 17,
    "more than 200 rows": lambda s: s["longest_q"] > 200,
    "more than 400 keys": lambda s: s["longest_k"] > 400,
    "more than 8,192 tokens of rows": lambda s: s["tokens_q"] > 8192,
    "more than 8,192 tokens of keys": lambda s: s["tokens_k"] > 8192,
    "one row, groups": lambda s: s["longest_q"] == 1 and s["group"] > 1 and s["longest_k"] > 600,
    "8 or more key heads with groups": lambda s: s["kv_heads"] >= 8 and s["group"] > 1,
}
LONG: dict[str, Callable[[int], bool]] = {
    "4,096": lambda n: n == 4096,
    "a multiple of 4,096 beyond it": lambda n: n > 4096 and n % 4096 == 0,
    "more than 70,000": lambda n: n > 70_000,
    "more than 131,072": lambda n: n > 1 << 17,
    "1 mod 256": lambda n: n % 256 == 1 < n,
    "2,047": lambda n: n == 2047,
    "a multiple of 384": lambda n: n % 384 == 0,
}


def of_user(names: tuple[str, ...]) -> dict[str, Class]:
    """The classes of a user's problem with these sizes."""
    found: dict[str, Class] = {
        f"{name}: {which}": lambda s, n=name, h=holds: h(s[n])
        for name in names
        for which, holds in LONG.items()
    }  # fmt: skip
    found["more than 2^24 elements"] = lambda s: s["elements"] > 1 << 24
    for one, other in itertools.combinations(names, 2):
        found[f"{one} and {other} over 1,000"] = lambda s, a=one, b=other: min(s[a], s[b]) > 1000
        found[f"{one} 63 mod 64, {other} 1 mod 64"] = lambda s, a=one, b=other: (
            s[a] % 64 == 63 and s[b] % 64 == 1 < s[b]
        )
    return found


DENSE = ("head_dim", "causal")
_PAGED_CASE = {
    **{"sequences": 8, "queries": 1, "heads": 8, "kv_heads": 2},
    **{"longest": 1024, "page_size": 16, "head_dim": 64},
}
_PACKED_CASE = {
    **{"sequences": 16, "heads": 8, "kv_heads": 2, "tokens_q": 1024, "tokens_k": 1024},
    **{"longest_q": 256, "longest_k": 256, "head_dim": 64},
}
_DECODE_CASE = {
    **{"batch": 8, "heads": 32, "kv_heads": 8, "seq_len_q": 1, "seq_len_k": 4096},
    "head_dim": 128,
}
_MISSION_CASE = {"batch": 1, "heads": 8, "seq_len": 512, "head_dim": 64}
_SOFTMAX, _RMS_NORM, _MATMUL = (
    f"kernels/{folder}/problem.py:{name}"
    for folder, name in (("softmax", "Softmax"), ("rms_norm", "RmsNorm"), ("matmul", "Matmul"))
)
_ROWS = {"rows": 4096, "columns": 1024}


class Subject(NamedTuple):
    """A problem, the case that its space times, the sizes that are kept, and the classes."""

    name: str
    shape: Mapping[str, Any]
    kept: tuple[str, ...]
    classes: Mapping[str, Class]


SUBJECTS = (
    Subject("attention", _MISSION_CASE, DENSE, ATTENTION),
    Subject("attention", _MISSION_CASE, (*DENSE, "softmax_scale"), ATTENTION),
    Subject("attention", {**_MISSION_CASE, "batch": 4, "seq_len": 4096}, DENSE, ATTENTION),
    Subject("attention", _DECODE_CASE, DENSE, ATTENTION),
    Subject("attention_paged", _PAGED_CASE, (*DENSE, "page_size"), PAGED),
    Subject("attention_paged", _PAGED_CASE, DENSE, {**PAGED, **PAGE_SIZES}),
    Subject("attention_varlen", _PACKED_CASE, DENSE, PACKED),
    Subject(_SOFTMAX, _ROWS, (), of_user(("rows", "columns"))),
    Subject(_RMS_NORM, _ROWS, (), of_user(("rows", "columns"))),
    Subject(_RMS_NORM, _ROWS, ("columns",), of_user(("rows",))),
    Subject(_MATMUL, {"m": 512, "n": 512, "k": 512}, (), of_user(("m", "n", "k"))),
)


def sizes_of(problem: Any, case: Any) -> dict[str, Any]:
    found = dict(case.symbols)
    if "heads" in found:
        found["group"] = found["heads"] // found["kv_heads"]
    if "seq_len_q" in found:
        found |= {"q": found["seq_len_q"], "k": found["seq_len_k"]}
        if found["causal"] and found["k"] > found["q"]:
            found["k"] = 0  # no row sees them all
    else:
        found["elements"] = max(spec.span for spec in problem.tensors(case))
    return found


def met(
    subject: Subject, seeds: int, tests: tuple[int, int]
) -> Iterator[tuple[str, str, int, int]]:
    """For each mask and class, in how many seeds one of all cases, and one of the first half, is of
    the class."""
    name, shape, kept, classes = subject
    from evotune.problems import create_problem

    problem = create_problem(name, "float32", ROOT)
    masks: tuple[bool, ...] = (False, True) if name == "attention" else ()
    if shape.get("seq_len_q") == 1:
        masks = (False,)
    variants = [{"causal": mask} for mask in masks]
    variants = variants or [{"causal": True} if name.startswith("attention") else {}]
    base = [problem.case(shape, variant) for variant in variants]
    count = min(tests[0] * len(base), tests[1])
    found: dict[tuple[str, str], list[int]] = {}
    for seed in range(seeds):
        drawn = problem.random_cases(base, seed, kept)
        near = (case for case in drawn if not str(case.symbols.get("layout")).startswith("far"))
        cases = [(case, sizes_of(problem, case)) for case in islice(near, count)]
        for mask in masks or (None,):
            mine = [
                (place, sizes)
                for place, (case, sizes) in enumerate(cases)
                if mask is None or case.symbols["causal"] is mask
            ]
            for key, holds in classes.items():
                if mask and "one row" in key:  # it sees one key
                    continue
                first = next((place for place, sizes in mine if holds(sizes)), count)
                counts = found.setdefault(
                    ({True: "causal", False: "full"}.get(mask, ""), key), [0, 0]
                )
                counts[0] += first < count
                counts[1] += first < count // 2
    for (mask, key), (all_of_them, half) in found.items():
        yield mask, key, all_of_them, half


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--tests", type=int, nargs=2, default=(120, 240), metavar=("KIND", "ALL"))
    parser.add_argument("--held-out", action="store_true", help="the classes of HELD_OUT")
    told = parser.parse_args()
    sys.path.insert(0, str(told.root))
    print(f"| problem | class | of {told.seeds} champions | in the first half |\n|---|---|--:|--:|")
    whole = halves = lines = 0
    for subject in SUBJECTS:
        name = subject.name
        if told.held_out and name != "attention":
            continue
        if told.held_out:
            subject = subject._replace(classes=HELD_OUT)  # noqa: PLW2901
        started = time.process_time()
        for mask, key, found, half in met(subject, told.seeds, told.tests):
            kept = f"kept {','.join(subject.kept)}"
            kind = " ".join(filter(None, (name.rpartition(":")[2], mask, kept)))
            print(f"| {kind} | {key} | {found} | {half} |")
            lines += 1
            whole += found == told.seeds
            halves += half == told.seeds
        spent = (time.process_time() - started) / told.seeds
        print(f"{name}: {spent:.2f} s of drawing a champion", file=sys.stderr)
    print(
        f"{whole} of {lines} classes are met in every seed, {halves} in the first half",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
