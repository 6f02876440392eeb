"""Packages of kernels that have values compiled in for measured cases only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from evotune.errors import SpaceError
from evotune.export.exporting import export_runs
from evotune.problems.executed_sizes import near_ends
from evotune.runs.folder import RunFolder
from evotune.runs.launches import Rejected
from evotune.runs.reopening import ReopenedRun
from evotune.runs.setup import KernelSetup, load_setup
from evotune.runs.spaces import shipped_spaces
from evotune.verify.kept_checks import checked_domain
from evotune.workers.executor import EDGE, RANDOM, SERVED

from .dispatching import Dispatched
from .making import fabricated


def softmax(folder: Path, known: str, **kernel: Any) -> Path:
    """The softmax space of the CPU with a `let`, `known`, that is specialised."""
    shipped = shipped_spaces()["softmax-cpu"]
    told = yaml.safe_load(shipped.read_text())
    told["root"] = str(shipped.parents[1])
    told["let"] = {"known": known, "Known": "rows"}
    told["kernels"]["softmax"] |= {"specialise": ["known"], **kernel}
    (folder / "space.yaml").write_text(yaml.safe_dump(told))
    return folder / "space.yaml"


MADE = """
name: made
problem:
  name: attention
  dtype: float32
  shapes: [{batch: 1, heads: 2, seq_len: 64, head_dim: 32}]
  variants: [{causal: false}]
kernels:
  made:
    source: made.cpp
    entry: made
    define: [head_dim]
    specialise: [known]
    arguments: [q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k, causal]
let: {known: seq_len_k}
parameters: {A: [1, 2]}
"""


MADE_KERNEL = """
extern "C" void made(const float* q, const float* k, const float* v, float* out, float scale,
                     int batch, int heads, int kv_heads, int rows, int keys, int causal) {}
"""


def dispatch(run: RunFolder) -> dict[str, Any]:
    """What a package of the run says of its kernels."""
    folder = run.path.parent / "pkg"
    found = export_runs([run], folder)
    described: dict[str, Any] = json.loads((folder / found.name / "dispatch.json").read_text())
    return described


@pytest.mark.sweep(2)
@pytest.mark.parametrize("define", [[], ["dtype"]])
@pytest.mark.parametrize("known", ["columns", "columns if rows > 1 else 0"])
def test_a_package_serves_measured_cases_and_others(
    known: str, define: list[str], tmp_path: Path
) -> None:
    described = dispatch(fabricated(softmax(tmp_path, known, define=define), tmp_path))
    package = Dispatched(described)
    assert len(described["kernels"][0]["binaries"]) == 4  # of three measured widths, and the others
    for columns, compiled in ((1024, 1024), (1500, 1500), (16384, 16384), (777, 0), (640, 0)):
        case = {"rows": 300, "columns": columns, "dtype": "float32"}
        choice = package.kernel_of(case, anywhere=True)
        assert choice is not None, columns
        assert choice.binary["fixed"].get("known", 0) == compiled


def test_each_specialised_binary_has_edge_cases_and_random_ones(tmp_path: Path) -> None:
    setup = load_setup(softmax(tmp_path, "columns"), "cpu")
    assert isinstance(setup, KernelSetup)
    made = setup.planner.proposal(0, setup.space.default())
    assert {job.case.symbols["columns"] for job in made.cases if job.role == EDGE} == {1024, 16384}
    made = setup.planner.proposal(0, setup.space.default(), confirm=True)
    random = [dict(job.compile.defines)["KNOWN"] for job in made.cases if job.role == RANDOM]
    assert min(random.count(columns) for columns in (1024, 1500, 16384)) > 3
    assert random.count(0) > 20


def test_a_specialised_width_ends_no_range_of_executed_lengths(tmp_path: Path) -> None:
    """A binary for 1,500 columns alone is no gap in what the binary for all others executed."""
    setup = load_setup(softmax(tmp_path, "columns"), "cpu")
    assert isinstance(setup, KernelSetup)
    problem = setup.planner.problem
    made = setup.planner.proposal(0, setup.space.default(), confirm=True)
    by_length = {job.compile.key for job in made.cases if job.role == SERVED}
    assert len(by_length) == 1
    checked = [(job.compile.key, job.case) for job in made.cases]
    regions = checked_domain(problem, checked, setup.profile, made.lengths, by_length).regions
    (executed,) = [region.executed for region in regions if region.executed is not None]
    (columns,) = [each.ranges for each in executed if each.name == "columns"]
    for width in (1024, 1500, 16384):
        low, high = near_ends([width])
        assert any(first <= low and high <= last for first, last in columns), (width, columns)


def test_each_specialised_binary_has_cases_in_every_band_of_rows(tmp_path: Path) -> None:
    setup = load_setup(softmax(tmp_path, "columns"), "cpu")
    assert isinstance(setup, KernelSetup)
    for number in range(3):
        made = setup.planner.proposal(number, setup.space.default(), confirm=True)
        rows: dict[object, set[int]] = {1024: set(), 1500: set(), 16384: set()}
        for job in made.cases:
            found = rows.get(dict(job.compile.defines)["KNOWN"], set())
            found.add(int(job.case.symbols["rows"]).bit_length())
        for bands in rows.values():
            assert bands == set(range(1, max(bands) + 1))


def test_the_binary_of_other_cases_is_checked_where_no_edge_case_is_supported(
    tmp_path: Path,
) -> None:
    """And random cases of the others are drawn until there are enough that the kernel supports."""
    path = softmax(tmp_path, "columns", supports={"columns": "% 256 == 0"})
    setup = load_setup(path, "cpu")
    assert isinstance(setup, KernelSetup)
    made = setup.planner.proposal(0, setup.space.default(), confirm=True)
    random = [dict(job.compile.defines)["KNOWN"] for job in made.cases if job.role == RANDOM]
    assert min(random.count(columns) for columns in (1024, 16384)) > 3
    assert random.count(0) > 5
    assert 1500 not in random  # held out, and not supported


def test_a_group_with_one_binary_is_not_served_by_another(tmp_path: Path) -> None:
    """Causal cases were checked with the binary for all lengths alone."""
    (tmp_path / "made.cpp").write_text(MADE_KERNEL)
    (tmp_path / "space.yaml").write_text(MADE)
    path = tmp_path / "space.yaml"
    run = fabricated(path, tmp_path)
    planner = ReopenedRun.load(run, anywhere=True).planner
    package = Dispatched(dispatch(run))
    checked = planner.proposal(0, planner.bound.default(), confirm=True).cases
    compiled = {(job.case.symbols["causal"], dict(job.compile.defines)["KNOWN"]) for job in checked}
    assert {known for causal, known in compiled if causal} == {0}
    served = set()
    for job in checked:
        given = planner.problem.place(job.case).fixed.get("given", "")
        symbols = {**job.case.symbols, "given": given}
        for length in (symbols["seq_len_k"], 64):
            case = {**symbols, "seq_len_k": length}
            choice = package.kernel_of(case, anywhere=True)
            if choice is not None:
                served.add((symbols["causal"], choice.binary["fixed"].get("known", 0)))
    assert served <= compiled
    assert (False, 64) in served


def test_no_case_gets_a_value_that_is_cut_off(tmp_path: Path) -> None:
    """The held-out case has 1,500 columns, which the kernel does not support."""
    kernel = {"define": ["known"], "specialise": []}
    space = softmax(tmp_path, "columns / 1024", **kernel)
    with pytest.raises(SpaceError, match=r"'known' is 1.46.* for \(500,1500\)"):
        load_setup(space, "cpu")
    space = softmax(tmp_path, "columns / 1024", **{**kernel, "supports": {"columns": "% 64 == 0"}})
    setup = load_setup(space, "cpu")
    assert isinstance(setup, KernelSetup)
    case = setup.planner.problem.case({"rows": 8, "columns": 1600}, {})
    with pytest.raises(Rejected, match=r"'known' is 1\.5625: only a whole number"):
        setup.planner.case_job(setup.space.default(), case)
    made = setup.planner.proposal(0, setup.space.default(), confirm=True)
    assert {job.case.symbols["columns"] % 1024 for job in made.cases} == {0}


@pytest.mark.parametrize(
    ("known", "kernel", "message"),
    [
        ("columns / 3000", {}, "'known' is 0.341.* for .*: only a whole number can be compiled in"),
        ("columns", {"define": ["known"]}, "'known' is compiled in twice"),
        ("columns", {"specialise": ["known", "Known"]}, "'known' is compiled in twice"),
        ("columns", {"specialise": ["known", "known"]}, "'known' is compiled in twice"),
    ],
)
def test_a_mistake_is_told(
    known: str, kernel: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpaceError, match=message):
        load_setup(softmax(tmp_path, known, **kernel), "cpu")
