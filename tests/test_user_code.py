"""evotune executes code in the working folder, code that ships with it, and code agreed to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evotune.user_code import NotAgreed, Trust, agreed_hashes, keep_hashes

ROOT = Path(__file__).parents[1]
CODE = b"int answer() { return 42; }\n"
HASH = "0" * 64


@pytest.fixture
def folders(nobody_agreed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `here`, the working folder, and `elsewhere`."""
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def kernel(folder: Path, content: bytes = CODE) -> dict[Path, bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "k.cpp").write_bytes(content)
    return {folder / "k.cpp": content}


def copies_of_a_run(folder: Path) -> Path:
    """Makes a run's folder; the path of its sources."""
    folder.mkdir(parents=True)
    (folder / "store.sqlite").touch()
    return folder / "sources"


def refused(files: dict[Path, bytes]) -> str:
    with pytest.raises(NotAgreed) as caught:
        Trust().require(files)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_code_under_the_working_folder_is_executed_wherever_its_copies_lie(folders: Path) -> None:
    Trust().require(kernel(folders / "here" / "kernels"))
    Trust().require(kernel(folders / "elsewhere"))  # a new `Trust` is like a new process


def test_code_from_elsewhere_is_refused_by_its_name_and_asked_about_once(folders: Path) -> None:
    files = {**kernel(folders / "elsewhere"), folders / "elsewhere" / "k.h": b"//\n"}
    assert refused(files) == (
        f"this would execute {folders}/elsewhere/k.cpp, which lies outside this folder (and 1 "
        "more): read it, then add --trust"
    )
    asked: list[Path] = []
    one = Trust()
    one.ask = lambda paths: not asked.extend(paths)
    one.require(files)
    one.require(files)
    assert asked == list(files)
    Trust().require(files)
    assert "k.cpp" in refused(kernel(folders / "elsewhere", CODE + b"\n"))


def test_what_a_run_carries_is_asked_about_also_under_the_working_folder(folders: Path) -> None:
    files = kernel(copies_of_a_run(folders / "here" / "runs" / "received") / "kernels")
    assert "k.cpp, which came with a run's folder: read it, then add --trust" in refused(files)
    Trust().require(kernel(folders / "here"))  # the same content, in a file of the user's own
    Trust().require(files)


@pytest.mark.parametrize("link", ["to the copies", "of the copies"])
def test_links_hide_neither_a_run_nor_another_folder(folders: Path, link: str) -> None:
    sources = copies_of_a_run(folders / "here" / "received")
    if link == "to the copies":
        kernel(sources)
        (folders / "here" / "mine").symlink_to(sources)
        assert "came with a run" in refused({folders / "here" / "mine" / "k.cpp": CODE})
    else:
        kernel(folders / "here" / "stuff")
        sources.symlink_to("../stuff")
        assert "came with a run" in refused({sources / "k.cpp": CODE})
    kernel(folders / "elsewhere", b"other")
    (folders / "here" / "link.cpp").symlink_to(folders / "elsewhere" / "k.cpp")
    assert "lies outside" in refused({folders / "here" / "link.cpp": b"other"})


def test_the_root_folder_is_a_working_folder_like_any_other(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    Trust().require(kernel(folders / "elsewhere"))
    assert "came with" in refused(kernel(copies_of_a_run(folders / "received"), b"received"))


def test_what_ships_with_evotune_needs_no_agreement(folders: Path) -> None:
    shipped = [path for path in (ROOT / "kernels").rglob("*.*") if path.is_file()]
    assert {".cpp", ".cu", ".cuh", ".h", ".py"} <= {path.suffix for path in shipped}
    sources = copies_of_a_run(folders / "here" / "received")
    files = {sources / path.name: path.read_bytes() for path in shipped}
    Trust().require(files)
    assert not (folders / "state").exists()
    first = next(iter(files))
    assert first.name in refused({**files, first: files[first] + b"\n"})


# --- the file of hashes ----------------------------------------------------------------------


def test_lines_that_make_no_sense_are_passed_over(folders: Path) -> None:
    keep_hashes([HASH])
    path = folders / "state" / "agreed"
    path.write_bytes(b"\xff\xfe\n" + HASH[:-1].encode() + b"\n\n" + path.read_bytes() + b"torn")
    assert agreed_hashes() == {HASH}


def _read_only(path: Path) -> None:
    path.write_text("a file where a folder should be")


def _unreadable(path: Path) -> None:
    (path / "agreed").mkdir(parents=True)


@pytest.mark.parametrize("spoil", [_read_only, _unreadable])
def test_where_nothing_can_be_kept_it_is_asked_again(
    folders: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(folders / "state")
    files = kernel(folders / "elsewhere")
    one = Trust()
    one.ask = lambda paths: True
    one.require(files)
    refused(files)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"EVOTUNE_STATE_DIR": "{}/a", "XDG_STATE_HOME": "{}/b"}, "a/agreed"),
        ({"XDG_STATE_HOME": "{}/b"}, "b/evotune/agreed"),
        ({"XDG_STATE_HOME": ""}, "home/.local/state/evotune/agreed"),
        # The XDG standard ignores relative paths: such a file could come from the folder's maker.
        ({"XDG_STATE_HOME": "here"}, "home/.local/state/evotune/agreed"),
        ({"EVOTUNE_STATE_DIR": "here"}, None),
    ],
)
def test_where_it_is_kept(
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    expected: str | None,
) -> None:
    monkeypatch.delenv("EVOTUNE_STATE_DIR")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(folders / "home"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(folders))
    keep_hashes([HASH])
    found = [str(path.relative_to(folders)) for path in folders.rglob("agreed")]
    assert found == ([expected] if expected else [])


def test_processes_that_agree_at_the_same_time_lose_nothing(folders: Path) -> None:
    program = (
        "import sys\nfrom evotune.user_code import keep_hashes\n"
        "for n in range(200): keep_hashes([f'{int(sys.argv[1]) + n:064x}'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(1000 * n)], env=environment)
        for n in range(4)
    ]
    assert [process.wait() for process in processes] == [0] * 4
    assert len(agreed_hashes()) == 800
