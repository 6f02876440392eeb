from __future__ import annotations

import errno
import io
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from report.runs import failed, make_run, ok
from rich.console import Console

import evotune
from evotune.cli import main
from evotune.cli.terminal import text_table
from evotune.packages import is_no_memory
from evotune.trial import OutcomeKind
from tests.patience import PATIENCE_S
from tests.sweeps import swept

from .conftest import ROOT, Invoke, start

COMMANDS = list(main._COMMANDS)


@pytest.fixture
def explosive(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """`invoke` with the command `explode`."""
    monkeypatch.setitem(main._COMMANDS, "explode", "cli.exploding:explode")
    return invoke


def test_help_describes_every_command(invoke: Invoke) -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        (line,) = [line for line in result.output.splitlines() if line.startswith(f"  {name} ")]
        assert line.endswith("."), "cut short in the list of commands"
        assert not line.endswith("..")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_commands_help_says_what_it_does_and_gives_an_example(
    invoke: Invoke, command: str
) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    usage, description, *_ = result.output.split("\n\n")
    assert usage.startswith(f"Usage: evotune {command}")
    assert description.strip()
    assert f"Example:\n    evotune {command}" in result.output


def test_the_version_is_printed(invoke: Invoke) -> None:
    assert invoke("--version").output == f"evotune {evotune.__version__}\n"


def test_help_imports_no_heavy_package() -> None:
    program = (
        "import sys\nfrom evotune.cli.main import application\n"
        "application.main(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'pandas', 'rich', 'pydantic', 'deap', 'yaml', 'sqlite3'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("heavy: []\n")


@pytest.mark.parametrize(
    ("how", "code", "line"),
    [
        ("evotune", 1, "error: nothing valid"),
        ("space", 2, "error: space.yaml:3:7: expected a list"),
        ("usage", 2, "error: no such thing"),
        ("environment", 3, "error: no compiler; install one"),
        ("store", 4, "error: damaged"),
        ("locked", 5, "error: held by 17"),
        ("interrupted", 130, "error: stopped"),
        ("keyboard", 130, "interrupted"),
        ("disguised", 130, "interrupted"),
        ("escape", 2, "error: bad [2J name"),
        ("import", 3, "error: not installed: torch; `evotune doctor` shows how to get it"),
        ("full", 3, "error: store.sqlite: No space left on device"),
        ("bug", 70, "error: internal error, please report it: ZeroDivisionError: division by"),
        ("own-import", 70, "error: internal error, please report it: ImportError: cannot"),
    ],
)
def test_every_error_is_one_line_on_stderr_and_an_exit_code(
    explosive: Invoke, how: str, code: int, line: str
) -> None:
    result = explosive("explode", how)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1


def test_a_bugs_traceback_is_kept_and_shown_only_on_request(
    explosive: Invoke, tmp_path: Path
) -> None:
    assert "Traceback" not in explosive("explode", "bug").stderr
    (kept,) = (tmp_path / "cache" / "crashes").glob("crash-*.txt")
    assert "ZeroDivisionError" in kept.read_text()
    assert "exploding.py" in kept.read_text()
    assert "Traceback" in explosive("explode", "bug", "-v").stderr


def test_a_traceback_goes_elsewhere_when_the_cache_cannot_be_written(
    explosive: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", "/dev/null/cache")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert str(tmp_path / "crash-") in explosive("explode", "bug").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["rnu"], 2, "Error: no command 'rnu'; did you mean 'run'?"),
        (["--frobnicate"], 2, "Error: No such option"),
        (["run", "nowhere.yaml"], 2, "error: nowhere.yaml: does not exist"),
        (["run", "atention-cpu"], 2, "error: no space 'atention-cpu'"),
        (["run", "--trials", "0"], 2, "Error: Invalid value for '--trials'"),
        (["run", "--trials", "many"], 2, "Error: Invalid value for '--trials'"),
        (["run", "--minutes", "0"], 2, "Error: Invalid value for '--minutes'"),
        (["run", "--seed", "-1"], 2, "Error: Invalid value for '--seed'"),
        (["run", "--device", "tpu"], 2, "error: unknown device 'tpu'"),
        (["run", "a", "b"], 2, "Error: Got unexpected extra argument (b)"),
        (["resume"], 2, "Error: Missing argument 'RUN'."),
        (["resume", "nothing"], 2, "error: no run 'nothing' in runs (there are none)"),
        (["status", "nothing"], 2, "error: no run 'nothing' in runs"),
        (["top", "latest"], 2, "error: no run 'latest' in runs"),
        (["top", "latest", "-n", "0"], 2, "Error: Invalid value for '-n'"),
        (["report", "latest", "--format", "htm"], 2, "Error: Invalid value for '--format'"),
        (["check"], 2, "Error: Missing argument 'SPACE'."),
        (["check", "nowhere.yaml"], 2, "error: nowhere.yaml: does not exist"),
        (["compile", "x.yaml", "--all", "--sample", "3"], 2, "Error: --all and --sample exclude"),
        (["compile", "x.yaml", "--sample", "0"], 2, "Error: Invalid value for '--sample'"),
        (["schema", "-o", "no/such/folder/x"], 2, "error: cannot write no/such/folder/x: No such"),
        (["run", "--gpus", "²"], 2, "Error: Invalid value for '--gpus': expected all or a number"),
        (["run", "x" * 5000], 2, "error: File name too long: xxx"),
        (["top", "x" * 5000], 2, "error: File name too long: xxx"),
        (["doctor", "--format", "csv"], 2, "Error: Invalid value for '--format'"),
    ],
)
def test_a_mistake_ends_with_its_exit_code_and_says_what_it_was(
    invoke: Invoke, arguments: list[str], code: int, line: str
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == code
    assert result.stderr.splitlines()[-1].startswith(line)
    assert result.stdout == ""


def test_the_formats_of_a_report_are_listed_when_one_does_not_exist(invoke: Invoke) -> None:
    assert "'html', 'md', 'csv', 'json'" in invoke("report", "x", "--format", "htm").stderr


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", [ok(1.0 + n / 100) for n in range(400)])
    process = start("report", "latest", "--format", "json", cwd=tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "{\n"
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_character_that_the_terminal_lacks_becomes_ascii_or_an_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = {1: failed(OutcomeKind.NAN, "held → out")}
    make_run(tmp_path / "runs", [ok(1.0), ok(1.0)], confirmations=verdicts)
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    process = start("top", "latest", cwd=tmp_path, encoding="latin-1")
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    assert "1000 µs" in output
    assert " µs " in output
    assert "\n-----" in output
    assert "held \\u2192 out" in output


def test_a_table_breaks_no_number_and_leaves_empty_columns_out() -> None:
    table = text_table(
        ("words", "µs", "empty"), [("long words " * 9, "1234.5678", "")], (False, True)
    )
    file = io.StringIO()
    Console(file=file, width=30).print(table)
    assert "1234.5678" in file.getvalue()
    assert "empty" not in file.getvalue()
    assert max(map(len, file.getvalue().splitlines())) <= 30


def test_a_deleted_working_folder_is_said_where_it_is_needed(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", [ok(1.0)])
    (tmp_path / "gone").mkdir()
    shell = 'cd gone && rmdir ../gone && exec "$0" -m evotune "$@"'

    def evotune(*words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "gone").mkdir(exist_ok=True)
        command = ["sh", "-c", shell, sys.executable, *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    assert evotune("top", "latest", "--runs-dir", str(tmp_path / "runs")).returncode == 0
    made = evotune("init", "mine")
    assert (made.returncode, made.stderr.count("\n")) == (3, 1)
    assert made.stderr.startswith("error: the working folder was deleted")


@pytest.mark.parametrize("option", ["--help", "--version", "top --help"])
def test_a_full_disk_is_one_line_of_the_help_too(tmp_path: Path, option: str) -> None:
    command = f'exec "$0" -m evotune {option} > /dev/full'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable],
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (3, "error: No space left on device\n")


@pytest.mark.parametrize("closed", swept((">&-", "2>&-", "<&- >&- 2>&-"), "<&- >&- 2>&-".__eq__))
def test_a_standard_stream_may_be_closed(tmp_path: Path, closed: str) -> None:
    make_run(tmp_path / "runs", [ok(1.0)])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in ("status", "init mine"):
        command = ["sh", "-c", f'exec "$0" -m evotune {words} {closed}', sys.executable]
        done = subprocess.run(
            command, check=False, cwd=tmp_path, env=environment, capture_output=True
        )
        assert done.returncode == 0
        assert b"error" not in done.stderr
        assert b"wrote" not in done.stdout


@pytest.mark.parametrize(
    ("error", "more"),
    [
        (MemoryError("Unable to allocate 3 TiB"), ": Unable to allocate 3 TiB"),
        (MemoryError(), ""),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ""),
        (ImportError("a.so: failed to map segment from shared object"), ""),
    ],
)
def test_no_memory_is_a_matter_of_the_machine(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, error: Exception, more: str
) -> None:
    def exhausted(*_: object) -> None:
        raise error

    monkeypatch.setattr("evotune.cli.status_views.all_runs", exhausted)
    result = invoke("status")
    assert result.exit_code == 3
    assert result.stderr == f"error: no memory is left{more}\n"


@pytest.mark.parametrize(("limit", "is_none"), [(1 << 25, True), (resource.RLIM_INFINITY, False)])
def test_an_error_that_c_code_could_not_name_is_a_lack_of_memory_under_a_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int, is_none: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    error = SystemError("<function f> returned NULL without setting an exception")
    assert is_no_memory(error) == is_none
    assert not is_no_memory(SystemError("bad argument to internal function"))


@pytest.mark.parametrize("value", ["0", "1", "²", "-1"])
def test_a_width_of_no_screen_changes_nothing(tmp_path: Path, value: str) -> None:
    make_run(tmp_path / "runs", [ok(1.2)])
    plain = {**os.environ, "PYTHONPATH": str(ROOT)}
    plain.pop("COLUMNS", None)
    shown = [
        subprocess.run(
            [sys.executable, "-m", "evotune", "status"],
            cwd=tmp_path, env=env, capture_output=True, text=True, check=True,
        ).stdout
        for env in ({**plain, "COLUMNS": value, "LINES": value}, plain)
    ]  # fmt: skip
    assert shown[0] == shown[1]
    assert "attention-cpu" in shown[0]


@pytest.mark.parametrize("redirected", ["2>/dev/full", "2</dev/null", "2>&-"])
def test_a_stderr_that_takes_nothing_loses_no_output(tmp_path: Path, redirected: str) -> None:
    recording = ROOT / "tests" / "data" / "synthetic_recording.json.gz"
    evotune = f"{shlex.quote(sys.executable)} -m evotune"
    for command, code, rows in ((f"run {recording} --trials 5", 0, 3), ("top nosuch", 2, 0)):
        done = subprocess.run(
            ["bash", "-c", f"exec {evotune} {command} {redirected}"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
            check=False,
        )  # fmt: skip
        assert done.returncode == code
        assert len(done.stdout.splitlines()) >= rows
