"""Packages as files: what is in them, which runs make them, and what is refused."""

from __future__ import annotations

import csv
import errno
import hashlib
import importlib.metadata
import io
import json
import os
import random
import shutil
import zipfile
from itertools import islice, product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from evotune.api.run import Run
from evotune.backends import registry
from evotune.errors import EnvironmentProblem, EvotuneError, UsageError
from evotune.export import _wheel_builder
from evotune.export.exporting import export_runs
from evotune.problems.problem import Case, Problem
from evotune.runs.folder import RunFolder
from evotune.runs.reopening import ReopenedRun
from evotune.runs.spaces import shipped_spaces
from evotune.store import RunStore
from evotune.workers.executor import TIMED
from tests.export.runtime.packages import imported
from tests.runs.runs import recorded_space, run_here

from .dispatching import Dispatched
from .making import (
    ROOT,
    TINY_SHAPES,
    explained_words,
    fabricated,
    tiny_space,
    with_speedup,
    words_of_tables,
)

FULL, CAUSAL = "(1,2,64,32) full", "(1,2,64,32) causal"


def exported(folder: Path, *runs: RunFolder, name: str | None = None) -> dict[str, Any]:
    """The JSON files of the package that is written into `folder`."""
    found = export_runs(runs, folder, name)
    inside = folder / found.name
    return {
        each: json.loads((inside / f"{each}.json").read_text())
        for each in ("dispatch", "certificate")
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"  # an import makes byte code
    }


def copied(run: RunFolder, folder: Path, name: str) -> RunFolder:
    shutil.copytree(run.path, folder / name)
    return RunFolder(folder / name)


def test_the_certificate_names_every_file_and_its_bytes(
    attention_run: RunFolder, tmp_path: Path
) -> None:
    certificate = exported(tmp_path / "pkg", attention_run)["certificate"]
    inside = contents(tmp_path / "pkg" / "attention_cpu")
    del inside["certificate.json"]
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in inside.items()}
    assert certificate["files"] == hashes
    assert {"__init__.py", "dispatch.json", "sources/space.yaml"} <= hashes.keys()
    assert "sources/kernels/attention/2_simd.cpp" in hashes
    assert {path.parts[0] for path in map(Path, contents(tmp_path / "pkg"))} == {
        *("README.md", "_build.py", "attention_cpu", "pyproject.toml"),
    }
    (champion,) = certificate["champions"]
    assert champion["run"] == attention_run.id
    assert champion["figures"][0]["speedup"] == 1.25
    assert champion["checks"][0]["status"] == "passed"
    assert champion["domain"]["regions"]


def test_two_exports_are_the_same_bytes_and_tell_no_place_and_no_time(
    attention_run: RunFolder, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        export_runs([attention_run], tmp_path / name)
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert one == two
    own = {name: content for name, content in one.items() if "sources/" not in name}
    for name, content in own.items():
        for word in (str(ROOT), str(tmp_path), "/home/somebody", str(Path.home())):
            assert word.encode() not in content, name


@pytest.mark.parametrize(
    ("name", "device"),
    [
        pytest.param("attention-cpu", "cpu", marks=pytest.mark.soak),
        pytest.param("attention-features-cpu", "cpu", marks=pytest.mark.soak),
        ("softmax-cpu", "cpu"),
        pytest.param("rms-norm-cpu", "cpu", marks=pytest.mark.soak),
        pytest.param("matmul-cpu", "cpu", marks=pytest.mark.soak),
        pytest.param("attention-varlen-cpu", "cpu", marks=pytest.mark.soak),
        pytest.param("attention-paged-cpu", "cpu", marks=pytest.mark.soak),
        pytest.param("attention-mma", "h200", marks=pytest.mark.soak),
        pytest.param("attention-wgmma", "h200", marks=pytest.mark.soak),
        pytest.param("attention-mma-features", "h200", marks=pytest.mark.soak),
        pytest.param("attention-wgmma-features", "h200", marks=pytest.mark.soak),
        pytest.param("attention-varlen-wgmma", "h200", marks=pytest.mark.soak),
        ("attention-triton", "h200"),
        pytest.param("linear-skinny", "h200", marks=pytest.mark.soak),
        pytest.param("add-rms-norm", "h200", marks=pytest.mark.soak),
        ("add-rms-norm-fp8", "h200"),
        pytest.param("cross-entropy", "h200", marks=pytest.mark.soak),
        pytest.param("rms-norm", "h200", marks=pytest.mark.soak),
    ],
)
def test_a_package_plans_each_case_as_evotune_does(name: str, device: str, tmp_path: Path) -> None:
    """The package's own interpreter makes the planner's launches, on cases in the whole domain."""
    if "triton" in name:
        pytest.importorskip("triton")
    tiny = name in TINY_SHAPES
    space = tiny_space(name, tmp_path) if tiny else shipped_spaces()[name]
    try:
        run = fabricated(space, tmp_path, device)
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    dispatch = exported(tmp_path / "pkg", run)["dispatch"]
    package = Dispatched(dispatch)
    reopened = ReopenedRun.load(run, anywhere=True)
    planner, timed = reopened.planner, reopened.setup.cases[TIMED]
    configuration = planner.bound.default()
    proposal = planner.proposal(0, configuration, confirm=True)
    compared = 0
    for job in proposal.cases:
        symbols = package_symbols(planner.problem, job.case)
        strided = any(spec.strides for spec in planner.problem.tensors(job.case))
        layout = "strided" if strided else "contiguous"
        choice = package.kernel_of(symbols, layout, anywhere=True)
        assert choice is not None, job.case.label
        fixed = choice.binary["fixed"]
        defines = dict(job.compile.defines)
        texts = {name for name in fixed if name in planner.problem.formulas(job.case)}
        assert all(defines[n.upper()] == v for n, v in fixed.items() if n not in texts)
        assert all(symbols[name] == fixed[name] for name in texts)
        wanted = job.plan.completed(choice.binary["resources"])
        found = choice.plan
        assert found["entry"] == wanted.entry
        launches = [
            (tuple(each["grid"]), tuple(each["block"]), each["shared_bytes"], each["entry"])
            for each in found["launches"]
        ]
        assert launches == [msgspec.structs.astuple(each) for each in wanted.launches]
        sizes = [(each["name"], each["bytes"], each["init"]) for each in found["workspaces"]]
        assert sizes == [msgspec.structs.astuple(each) for each in wanted.workspaces]
        for argument, own in zip(found["arguments"], wanted.arguments, strict=True):
            if own.type == "null":  # of a tensor that the case lacks
                assert argument == {"type": "int64", "value": 0}
                continue
            assert (argument["type"], argument.get("name", "")) == (own.type, own.name)
            assert argument.get("value", 0) == own.value
            if own.tensor_map is not None:
                strides = [
                    each // own.tensor_map.element_bytes for each in own.tensor_map.strides_bytes()
                ]
                tensor_map = {
                    name: list(value) if isinstance(value, tuple) else value
                    for name, value in msgspec.structs.asdict(own.tensor_map).items()
                } | {"strides": [*strides, 1]}
                assert argument["tensor_map"].items() >= tensor_map.items()
        for spec in planner.problem.tensors(job.case):
            assert package.extents(spec.name, symbols) == spec.shape
        compared += 1
    assert compared >= len(timed) + 3
    # Beyond the domain nothing runs.
    drawn = planner.problem.random_cases(timed, random.Random(9).getrandbits(30), ())
    for case in islice(drawn, 200):
        place, symbols = planner.problem.place(case), package_symbols(planner.problem, case)
        inside = any(
            {name: symbols[name] for name in region["fixed"]} == region["fixed"]
            and all(low <= place.ranged[n] <= high for n, (low, high) in region["ranges"].items())
            for region in dispatch["domain"]
        )
        found = package.kernel_of(symbols, anywhere=True)
        assert inside or found is None, case.label


def test_a_case_that_breaks_a_constraint_is_left_to_the_fallback(tmp_path: Path) -> None:
    """Confirmations also check kernels where a constraint does not hold, as it may be advice."""
    space = tiny_space("attention-cpu", tmp_path)
    text = space.read_text()
    with_advice = text.replace("constraints:\n", "constraints:\n  - BLOCK_M == 16 or heads <= 2\n")
    space.write_text(with_advice)
    run = fabricated(space, tmp_path)
    package = Dispatched(exported(tmp_path / "pkg", run)["dispatch"])
    planner = ReopenedRun.load(run, anywhere=True).planner
    checked = planner.proposal(0, planner.bound.default(), confirm=True).cases
    served = []
    for job in checked:
        strided = any(spec.strides for spec in planner.problem.tensors(job.case))
        layout = "strided" if strided else "contiguous"
        symbols = package_symbols(planner.problem, job.case)
        choice = package.kernel_of(symbols, layout, anywhere=True)
        assert (choice is not None) == (job.case.symbols["heads"] <= 2), job.case.label
        served.append(choice is not None)
    assert any(served)
    assert not all(served)


def package_symbols(problem: Problem, case: Case) -> dict[str, Any]:
    """The symbols that a package makes of a call: the case's own, and which numbers it gives."""
    return {**case.symbols, "given": problem.place(case).fixed.get("given", "")}


def with_strides(case: dict[str, Any], *, across: bool) -> dict[str, Any]:
    """The case with the strides of (batch, heads, length, head_dim) memory, or of (batch, length,
    heads, head_dim) memory."""
    found = {**case, "kv_heads": case["heads"] // case["group"]}
    for name in ("q", "k", "v", "out"):
        heads = found["heads" if name in ("q", "out") else "kv_heads"]
        length = found["seq_len_q" if name in ("q", "out") else "seq_len_k"]
        size, row = found["head_dim"], found["head_dim"] * (heads if across else 1)
        found[f"{name}_stride_batch"] = heads * length * size
        found[f"{name}_stride_head"] = size if across else length * size
        found[f"{name}_stride_row"] = row
    return found


def test_a_package_for_a_gpu_has_cubins_and_a_launcher(tmp_path: Path) -> None:
    try:
        run = fabricated(shipped_spaces()["attention-mma"], tmp_path, "h200")
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    for name in ("one", "two"):
        export_runs([run], tmp_path / name)
    one = contents(tmp_path / "one")
    assert one == contents(tmp_path / "two")
    binaries = [name for name in one if "/binaries/" in name]
    assert len(binaries) == 6  # full and causal: contiguous, views, and views of 8 heads
    dispatch = json.loads(one["attention_mma/dispatch.json"])
    fixed = [each["fixed"] for each in dispatch["kernels"][0]["binaries"]]
    assert sorted((each["causal"], each["strided"], each.get("k_row", 0)) for each in fixed) == [
        (causal, *of) for causal in (False, True) for of in ((0, 0), (1, 0), (1, 8 * 64))
    ]
    assert {region["layout"] for region in dispatch["served"]} == {"strided"}
    widest = {0: 0, 1: 0}  # each binary has the domain of its own cases: views were far apart
    for region in dispatch["domain"]:
        strided = region["compiled"]["strided"]
        widest[strided] = max(widest[strided], region["ranges"]["elements"][1])
    assert widest[0] < 1 << 31 < widest[1]
    package = Dispatched(dispatch)
    layouts = (("contiguous", 0, 12), ("strided", 1, 24))
    for served, (layout, strided, given) in product(package.exact_cases(), layouts):
        case = with_strides(served, across=bool(strided))
        choice = package.kernel_of(case, layout)
        assert choice is not None
        assert choice.binary["fixed"]["strided"] == strided
        assert choice.binary["fixed"].get("q_row", 0) == 8 * 64 * strided
        assert len(choice.plan["arguments"]) == given
        further = [{"heads": 4}, {"heads": 8, "seq_len_q": 300, "seq_len_k": 400}]
        for changes in (*further, {"q_stride_head": 72, "q_stride_row": 8 * 72}):
            others = with_strides({**case, **changes}, across=bool(strided)) | changes
            choice = package.kernel_of(others, layout, anywhere=True)
            assert choice is not None, changes
            specialised = strided and others["heads"] == 8 and "q_stride_row" not in changes
            assert choice.binary["fixed"].get("q_row", 0) == (8 * 64 if specialised else 0)
    assert all(name.endswith(".cubin") for name in binaries)
    assert all(one[name].startswith(b"\x7fELF") for name in binaries)
    assert "attention_mma/_cuda_launcher.py" in one
    assert "attention_mma/_cpu_launcher.py" not in one
    readme = one["README.md"].decode()
    assert r"NVIDIA H200, sm\_90a, 132 multiprocessors" in readme
    assert "F.scaled_dot_product_attention" in readme


def test_the_readme_explains_every_word_of_its_tables(
    softmax_run: RunFolder, attention_run: RunFolder, tmp_path: Path
) -> None:
    own = {"rows", "columns", "elements"}
    sdpa = {"head_dim", "causal", "group", "softmax_scale", "elements", "length_ratio"}
    for run, columns in ((softmax_run, own), (attention_run, sdpa)):
        export_runs([run], tmp_path / run.id)
        text = (tmp_path / run.id / "README.md").read_text()
        assert columns <= words_of_tables(text) <= explained_words(text)
        assert {"kernel", "case", "time_us", "baseline"} <= explained_words(text)
        assert ("group" in explained_words(text)) == ("group" in columns)


def test_a_backend_without_exports_says_so(
    softmax_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = ReopenedRun.load(softmax_run, anywhere=True).setup.profile
    monkeypatch.setattr(type(registry.named(profile.backend)), "binary_suffix", "")
    with pytest.raises(UsageError, match="cannot be exported"):
        export_runs([softmax_run], tmp_path / "pkg")


def test_only_won_cases_are_served(attention_run: RunFolder, tmp_path: Path) -> None:
    run = copied(attention_run, tmp_path, "lost")
    with_speedup(run, 1.25, {CAUSAL: 1.01, "(2,2,60,32) causal": 0.9})
    package = exported(tmp_path / "pkg", run)
    served = package["dispatch"]["served"]
    assert [(region["fixed"]["causal"], region["near"]) for region in served] == [
        (False, False),
        (False, True),
    ]
    assert len(package["dispatch"]["domain"]) == 2


def test_where_held_out_cases_alone_win_a_check_compares_them(
    attention_run: RunFolder, tmp_path: Path
) -> None:
    run = with_speedup(copied(attention_run, tmp_path, "lost"), 1.0, {"(2,2,60,32) full": 1.25})
    package = exported(tmp_path / "pkg", run)
    assert [region["near"] for region in package["dispatch"]["served"]] == [True]
    name = package["dispatch"]["package"]
    with imported(tmp_path / "pkg" / name) as module:
        assert [row.case for row in module.check().rows] == ["(2,2/2,60,60,32) full"]
        assert module.check()


def test_each_case_gets_the_champion_with_the_greatest_lower_bound(
    attention_run: RunFolder, tmp_path: Path
) -> None:
    other = fabricated(
        tiny_space("attention-cpu", tmp_path),
        tmp_path,
        values={"SCHEDULE": "static"},
        cases={CAUSAL: 1.5, FULL: 1.1},
    )
    packages = [
        exported(tmp_path / name, *runs)
        for name, runs in (("a", (attention_run, other)), ("b", (other, attention_run, other)))
    ]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    Run(other).export(tmp_path / "c", beside=[Run(attention_run)])
    assert contents(tmp_path / "a") == contents(tmp_path / "c")
    dispatch, certificate = packages[0]["dispatch"], packages[0]["certificate"]
    by_run = {each["run"]: number for number, each in enumerate(certificate["champions"])}
    first = {}
    for region in dispatch["served"]:
        first.setdefault(region["fixed"]["causal"], region["kernel"])
    assert first == {True: by_run[other.id], False: by_run[attention_run.id]}
    sources = [name for name in certificate["files"] if name.endswith("2_simd.cpp")]
    assert len(sources) == 2


def test_a_kernel_of_another_pytorch_waits_for_a_check(
    attention_run: RunFolder, tmp_path: Path
) -> None:
    other = fabricated(tiny_space("attention-cpu", tmp_path), tmp_path, cases={CAUSAL: 1.5})
    described = json.loads(other.environment.read_text())
    with RunStore.open_for_writing(other.store) as store:
        described["packages"]["torch"] = "2.6.0"
        store.set_meta("environment", described)
    other.environment.write_text(json.dumps(described))
    package = exported(tmp_path / "pkg", attention_run, other, name="two_pytorchs")
    versions = [each["versions"]["torch"] for each in package["certificate"]["champions"]]
    assert set(versions) == {importlib.metadata.version("torch"), "2.6.0"}
    with imported(tmp_path / "pkg" / "two_pytorchs") as module:
        difference = module._loaded._loaded.versions.difference()
        assert difference == f"torch is {torch.__version__} here and was 2.6.0"
        assert module.check()
        assert module.info()["versions_accepted"]


def test_a_champion_that_wins_no_case_is_left_out(attention_run: RunFolder, tmp_path: Path) -> None:
    slower = fabricated(
        tiny_space("attention-cpu", tmp_path), tmp_path, values={"CHUNK": 2}, speedup=1.1
    )
    certificate = exported(tmp_path / "pkg", slower, attention_run)["certificate"]
    assert [each["run"] for each in certificate["champions"]] == [attention_run.id]


def test_attention_that_wins_nothing_is_no_package(
    attention_run: RunFolder, tmp_path: Path
) -> None:
    run = with_speedup(copied(attention_run, tmp_path, "slow"), 1.0)
    with pytest.raises(EvotuneError, match="no confirmed champion is surely faster") as caught:
        export_runs([run], tmp_path / "pkg")
    assert caught.value.exit_code == 1
    assert not (tmp_path / "pkg").exists()


def test_another_problem_serves_its_domain_though_it_wins_nothing(
    softmax_run: RunFolder, tmp_path: Path
) -> None:
    run = with_speedup(copied(softmax_run, tmp_path, "slow"), 0.8)
    dispatch = exported(tmp_path / "pkg", run)["dispatch"]
    page = " ".join((tmp_path / "pkg" / "README.md").read_text().split())
    assert "## Faster cases Kernels serve their whole domain" in page
    assert dispatch["served"] == []
    assert dispatch["domain"]
    assert dispatch["problem"]["call"] == "softmax"
    assert dispatch["cases_from"]["sizes"] == ["rows", "columns"]
    assert dispatch["shapes"]["x"] == [{"name": "rows"}, {"name": "columns"}]


def test_code_that_was_not_measured_is_not_exported(softmax_run: RunFolder, tmp_path: Path) -> None:
    run = copied(softmax_run, tmp_path, "other")
    with RunStore.open_for_writing(run.store) as store:
        ((number, outcome),) = store.confirmations().items()
        store.confirm(number, msgspec.structs.replace(outcome, binary="0" * 64), 2.0)
    export_runs([run], tmp_path / "pkg")  # the trial's own fingerprint is right
    other = fabricated(tiny_space("softmax-cpu", tmp_path), tmp_path, fingerprint="0" * 64)
    words = "the machine code that is made here is not the code that was measured"
    with pytest.raises(EnvironmentProblem, match=words):
        export_runs([other], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_run_without_a_confirmed_champion_is_no_package(tmp_path: Path) -> None:
    run = fabricated(tiny_space("softmax-cpu", tmp_path), tmp_path, confirmed=False)
    with pytest.raises(EvotuneError, match="has no confirmed champion") as caught:
        export_runs([run], tmp_path / "pkg")
    assert caught.value.exit_code == 1


def test_a_recorded_run_has_no_kernel(tmp_path: Path) -> None:
    run = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=5)
    with pytest.raises(UsageError, match="there is no kernel in it"):
        export_runs([run], tmp_path / "pkg")


def test_runs_that_do_not_belong_together_are_refused(
    softmax_run: RunFolder, attention_run: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="different problems: attention float32 and"):
        export_runs([attention_run, softmax_run], tmp_path / "pkg")
    for name, words in (
        ("threads", r"the runs were measured with \d+ and 1000 threads: export runs of as many"),
        ("simd_bytes", "different devices: .* which differ in other figures"),
    ):
        other = copied(softmax_run, tmp_path, f"other {name}")
        with RunStore.open_for_writing(other.store) as store:
            device = store.meta("device")
            changed = {**device, "attributes": {**device["attributes"], name: 1000}}
            store.set_meta("device", changed)
        with pytest.raises(UsageError, match=words):
            export_runs([softmax_run, other], tmp_path / "pkg")
    assert not (tmp_path / "pkg").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a-b", "cannot be the name of a package"),
        ("1a", "cannot be the name of a package"),
        ("_a", "cannot be the name of a package"),
        ("ähnlich", "cannot be the name of a package"),
        ("class", "cannot be the name of a package"),
        ("json", "would hide the Python module of that name"),
        ("torch", "would hide the Python module of that name"),
        ("sympy", "would hide the Python module of that name"),
        ("mpmath", "would hide the Python module of that name"),  # sympy needs it
        ("higher_order", "torch.ops.higher_order is PyTorch's own"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    softmax_run: RunFolder, tmp_path: Path, name: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        export_runs([softmax_run], tmp_path / "pkg", name)


def test_only_a_new_or_an_empty_folder_is_written(
    softmax_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    file = tmp_path / "file"
    file.write_text("mine")
    for folder, words in ((full, "is not empty"), (file, "Not a directory")):
        with pytest.raises(UsageError, match=words):
            export_runs([softmax_run], folder)
    assert contents(full) == {"mine.txt": b"mine"}
    (tmp_path / "real").mkdir()
    (tmp_path / "empty").symlink_to("real")
    found = export_runs([softmax_run], tmp_path / "empty", "mine")
    assert found.name == "mine"
    assert (tmp_path / "empty" / "mine" / "certificate.json").is_file()
    export_runs([softmax_run], tmp_path / "new" / "deep")
    assert not [path for path in tmp_path.rglob(".*") if path.is_dir()]
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(UsageError, match=r"cannot write .*closed: No space left on device"):
        export_runs([softmax_run], tmp_path / "closed")
    assert contents(tmp_path / "closed") == {}


def refused(*paths: object) -> str:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_package_without_features_says_nothing_of_them(attention_cpu: Path) -> None:
    described = json.loads((attention_cpu / "dispatch.json").read_text())
    regions = [*described["served"], *described["domain"]]
    assert all(region["fixed"].keys() == {"causal", "dtype", "head_dim"} for region in regions)
    assert "score_mods" not in described
    readme = (attention_cpu.parent / "README.md").read_text()
    assert "window" not in readme
    assert "given" not in readme


def test_the_table_of_a_wheel_has_sources_of_any_name(
    softmax_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export_runs([softmax_run], tmp_path / "pkg", "tuned").folder
    certificate = folder / "tuned" / "certificate.json"
    described = json.loads(certificate.read_text())
    name = 'sources/my, "own" kernel ä.cpp'
    (folder / "tuned" / name).write_bytes(b"")
    described["files"][name] = hashlib.sha256(b"").hexdigest()
    certificate.write_text(json.dumps(described))
    monkeypatch.setattr(_wheel_builder, "_ROOT", folder)
    wheel = zipfile.ZipFile(tmp_path / _wheel_builder.build_wheel(str(tmp_path)))
    (table,) = [each for each in wheel.namelist() if each.endswith("/RECORD")]
    rows = list(csv.reader(io.StringIO(wheel.read(table).decode())))
    assert [path for path, _, _ in rows] == wheel.namelist()
    assert [row[0] for row in rows if row[2] == "0"] == [f"tuned/{name}"]
