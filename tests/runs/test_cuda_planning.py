"""Proposals of a CUDA space: several launches, limits known before compiling, architectures."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import pytest
import yaml

from evotune.backends.base.launch import Binary, Launch
from evotune.errors import EnvironmentProblem, SpaceError, UsageError
from evotune.runs.confirming import timed_again
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.trial import Configuration, Value
from evotune.workers.executor import HELD_OUT, Proposal
from evotune.workers.in_flight import review_build

SHIPPED = Path(__file__).parents[2] / "search_spaces"
SPACE = Path(__file__).parents[1] / "data" / "cuda" / "cuda.yaml"


def planner(device: str = "l4", space: Path = SPACE) -> Planner:
    made = load_setup(space, device, compile_only=True).planner
    assert made is not None
    return made


def proposal(device: str = "l4", *, confirm: bool = False, **values: Value) -> Proposal:
    configuration = {"FAULT": "none", "SPLIT": 1, "THREADS": 128, "SHARED_KIB": 0, **values}
    return planner(device).proposal(7, Configuration(configuration), confirm=confirm)


def changed_space(folder: Path, old: str, new: str) -> Path:
    text = SPACE.read_text()
    assert old in text
    shutil.copytree(SPACE.parent / "kernels", folder / "kernels")
    path = folder / "changed.yaml"
    path.write_text(text.replace(old, new))
    return path


def test_each_launch_has_its_entry_and_happens_only_when_its_condition_holds() -> None:
    one, two = proposal(), proposal(SPLIT=2, SHARED_KIB=64)
    main = Launch((8, 8), (128,), 0, "attention_forward")
    assert one.cases[0].plan.launches == (main,)
    assert two.cases[0].plan.launches == (
        Launch((16, 8), (128,), 65_536, "attention_forward"),
        Launch((8,), (1024,), 0, "merge_parts"),
    )
    assert two.cases[0].plan.entry == "attention_forward"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["attention_triton", "attention_mma", "attention_wgmma"])
def test_what_a_planner_remembers_changes_no_proposal(name: str) -> None:
    space = Path(__file__).parents[2] / "search_spaces" / f"{name}.yaml"
    setup = load_setup(space, "h200", compile_only=True)
    assert setup.planner is not None
    rng = random.Random(0)
    for number in range(3):
        configuration = setup.space.sample(rng)
        fresh = planner("h200", space)
        for confirm in (False, True):
            again = setup.planner.proposal(number, configuration, confirm=confirm)
            assert again == fresh.proposal(number, configuration, confirm=confirm)


def test_one_binary_serves_the_cases_that_compile_the_same_symbols_in() -> None:
    assert len({case.compile.key for case in proposal().cases}) == 1
    assert proposal().cases[0].compile.arch == "sm_89"
    assert proposal("h200").cases[0].compile.arch == "sm_90a"


def test_no_launch_at_all_is_a_rejection(tmp_path: Path) -> None:
    space = changed_space(tmp_path, "      - grid: [\"SPLIT", "      - when: SPLIT > 1\n"
                          "        grid: [\"SPLIT")  # fmt: skip
    values = {"FAULT": "none", "SPLIT": 1, "THREADS": 128, "SHARED_KIB": 0}
    found = planner(space=space).proposal(0, Configuration(values))
    assert (
        found.rejection == "(1,8,512,64) full: no launch of kernel faulty has a 'when' that holds"
    )


def test_what_the_device_cannot_launch_is_rejected_before_compiling() -> None:
    assert proposal(THREADS=2048).rejection == (
        "(1,8,512,64) full: block.x is 2048, but must be from 1 to 1024"
    )
    assert "204800 bytes of shared memory" in proposal(SHARED_KIB=200).rejection
    assert proposal("h200", SHARED_KIB=200).rejection == ""


def test_held_out_cases_must_be_launchable_too_but_join_only_champions(tmp_path: Path) -> None:
    space = changed_space(
        tmp_path, "block: [THREADS]", 'block: ["THREADS * (16 if heads * batch == 16 else 1)"]'
    )
    values = {"FAULT": "none", "SPLIT": 1, "THREADS": 128, "SHARED_KIB": 0}
    found = planner(space=space).proposal(0, Configuration(values))
    assert "block.x is 2048" in found.rejection
    roles = [{case.role for case in proposal(confirm=c).cases} for c in (False, True)]
    assert (HELD_OUT in roles[0], HELD_OUT in roles[1]) == (False, True)


def test_an_architecture_that_no_kernel_supports_is_an_error_at_the_kernel(tmp_path: Path) -> None:
    space = changed_space(tmp_path, '">= 80"', '">= 90"')
    assert load_setup(space, "h100", compile_only=True).planner is not None
    with pytest.raises(SpaceError) as caught:
        load_setup(space, "l4", compile_only=True)
    assert caught.value.message == "kernel faulty needs sm_90 or later, found sm_89 (NVIDIA L4)"
    assert caught.value.line == 10


def test_an_architecture_that_another_kernel_supports_is_a_rejection(tmp_path: Path) -> None:
    text = SPACE.read_text().replace("parameters:\n", "{kernel}parameters:\n")
    begin, end = text.index("  faulty:"), text.index("{kernel}")
    second = text[begin:end].replace("faulty:", "modern:").replace(">= 80", ">= 90")
    shutil.copytree(SPACE.parent / "kernels", tmp_path / "kernels")
    path = tmp_path / "two.yaml"
    path.write_text(text.replace("{kernel}", second))
    values = {"KERNEL": "modern", "FAULT": "none", "SPLIT": 1, "THREADS": 128, "SHARED_KIB": 0}
    found = planner(space=path).proposal(0, Configuration(values))
    assert found.rejection == "kernel modern needs sm_90 or later, found sm_89"
    fine = planner(space=path).proposal(0, Configuration({**values, "KERNEL": "faulty"}))
    assert fine.rejection == ""


def test_a_compiler_option_outside_the_list_is_refused(tmp_path: Path) -> None:
    space = changed_space(tmp_path, "    workspace:", "    options: [-I/etc]\n    workspace:")
    with pytest.raises(SpaceError, match="option '-I/etc' is not allowed; allowed: --use_fast_m"):
        load_setup(space, "l4", compile_only=True)


def test_a_workspace_named_like_a_tensor_is_refused(tmp_path: Path) -> None:
    space = changed_space(tmp_path, "workspace: {partials:", "workspace: {q:")
    with pytest.raises(SpaceError, match=r"yaml:\d+:\d+: workspace q has the name of a tensor"):
        load_setup(space, "l4", compile_only=True)


def test_a_name_compiles_but_does_not_run_without_that_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(EnvironmentProblem, match="--device l4: this machine has no NVIDIA L4"):
        load_setup(SPACE, "l4")
    with pytest.raises(UsageError, match="holds cuda kernels; they cannot run on --device cpu"):
        load_setup(SPACE, "cpu")


def test_plans_that_differ_only_in_the_entry_differ() -> None:
    launch = Launch((1,), (32,), 0, "one")
    assert launch != msgspec.structs.replace(launch, entry="two")


def test_timing_a_champion_again_needs_the_binaries_of_its_timed_cases_alone(
    tmp_path: Path,
) -> None:
    """The other mask has a binary of its own, which is checked but never timed."""
    document = yaml.safe_load((SHIPPED / "attention_mma.yaml").read_text())
    document["root"] = str(SHIPPED.parent)
    document["problem"]["variants"] = [{"causal": False}]
    path = tmp_path / "full.yaml"
    path.write_text(yaml.safe_dump(document))
    made = load_setup(path, "l4", compile_only=True)
    assert made.planner is not None
    whole = made.planner.proposal(0, made.space.default(), confirm=True)
    again = timed_again(whole)
    assert len(again.compile_jobs) < len(whole.compile_jobs)
    binary = Binary("", "", {"registers": 40}, 0.0)
    assert not review_build(
        again, dict.fromkeys(again.compile_jobs, binary), made.planner.rules
    ).violation
