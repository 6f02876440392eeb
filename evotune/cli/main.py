"""The entry point: finds the command, runs it, and turns its end into an exit code.

0 done · 1 no valid candidate, none confirmed, a check failed · 2 usage or space error · 3
environment · 4 store damaged · 5 run locked · 6 undecided, too noisy or out of time · 70
internal error (a bug; its traceback is kept) · 130 interrupted, resumable
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from evotune import packages
from evotune.cli.options import global_options
from evotune.cli.terminal import Terminal, forget_useless_sizes, keep_going_without_stderr, say
from evotune.errors import EvotuneError, Interrupted, UsageError
from evotune.packages import __version__, is_no_memory, say_no_memory
from evotune.util.words import did_you_mean, shorten, shorten_names

_COMMANDS = {
    "run": "evotune.cli.run_commands:run",
    "resume": "evotune.cli.run_commands:resume",
    "status": "evotune.cli.readers:status",
    "top": "evotune.cli.readers:top",
    "report": "evotune.cli.readers:report",
    "compare": "evotune.cli.explain_commands:compare",
    "gate": "evotune.cli.gate_command:gate",
    "ablate": "evotune.cli.explain_commands:ablate",
    "explain": "evotune.cli.explain_commands:explain",
    "verify": "evotune.cli.verify_command:verify",
    "export": "evotune.cli.export_commands:export",
    "portfolio": "evotune.cli.export_commands:portfolio",
    "tune-model": "evotune.cli.model_commands:tune_model",
    "record": "evotune.cli.model_commands:record",
    "check": "evotune.cli.inspection:check",
    "compile": "evotune.cli.inspection:compile_command",
    "init": "evotune.cli.init_command:init",
    "replay": "evotune.cli.run_commands:replay",
    "list": "evotune.cli.housekeeping:list_command",
    "rm": "evotune.cli.housekeeping:rm",
    "cache": "evotune.cli.housekeeping:cache",
    "schema": "evotune.cli.inspection:schema",
    "completion": "evotune.cli.housekeeping:completion",
    "doctor": "evotune.cli.housekeeping:doctor",
}
_INTERNAL_ERROR = 70  # EX_SOFTWARE
_ENVIRONMENT = 3
_ENVIRONMENT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class Application(click.Group):
    """The command group. It imports a command's module only when the command is used. Commands
    return exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = _COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            raise click.UsageError(f"no command {name!r}{did_you_mean(name, _COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        ctx.exit(self._exit_code(ctx))

    def _exit_code(self, ctx: click.Context) -> int:
        terminal = ctx.ensure_object(Terminal)
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
            return int(code or 0)
        except EvotuneError as error:
            say(f"error: {shorten_names(str(error))}")
            return error.exit_code
        except KeyboardInterrupt:
            say("interrupted")
            return Interrupted.exit_code
        except BrokenPipeError:
            _discard_stdout()  # the program that reads our output (head, less) has closed the pipe
            return terminal.verdict
        except click.ClickException as error:
            vars(error).update(message=shorten_names(error.message))  # typed as final
            raise
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001 - nothing above this would record the error
            return _unexpected(error, terminal)


def _interrupted(error: BaseException | None) -> bool:
    """Whether a KeyboardInterrupt caused the error: an import that is interrupted may raise another
    error in its place."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _unexpected(error: Exception, terminal: Terminal) -> int:
    if _interrupted(error):
        say("interrupted")
        return Interrupted.exit_code
    if isinstance(error, ImportError) and (package := packages.provider(error.name)):
        return packages.say_missing(package)
    if isinstance(error, ImportError) and not (error.name or "evotune").startswith("evotune"):
        say(f"error: {error}; `evotune doctor` shows what is missing and how to get it")
        return _ENVIRONMENT
    if is_no_memory(error):
        return say_no_memory(error)
    if isinstance(error, OSError) and (code := _environment_code(error)):
        return code
    report_crash(error, terminal)
    return _INTERNAL_ERROR


def _environment_code(error: OSError) -> int | None:
    """Tells the user of an error that is no bug, and returns its exit code; None for a bug."""
    if isinstance(error, FileNotFoundError) and not _is_anywhere():
        say("error: the working folder was deleted: go to another one with cd")
        return _ENVIRONMENT
    if error.errno == errno.ENAMETOOLONG:
        say(f"error: {error.strerror}: {shorten(str(error.filename))}")
        return UsageError.exit_code
    if error.errno in _ENVIRONMENT_ERRNOS:
        where = f"{error.filename}: " if error.filename else ""
        say(f"error: {where}{error.strerror}")
        return _ENVIRONMENT
    return None


def _is_anywhere() -> bool:
    """Whether this process has a working folder."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _discard_stdout() -> None:
    """Sends stdout to the null device, so that the interpreter's own flush at exit succeeds."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def report_crash(error: BaseException, terminal: Terminal) -> None:
    """Names the error and the file with its traceback on stderr; --verbose shows the traceback
    there too."""
    text = "".join(traceback.format_exception(error))
    path = _write(text, terminal)
    if terminal.verbose or path is None:
        click.echo(text, err=True, nl=False)
    what = str(error).strip().partition("\n")[0]
    name = type(error).__name__
    kept = f"; the traceback is in {path}" if path else ""
    say(f"error: internal error, please report it: {name}{f': {what}' if what else ''}{kept}")


def _write(text: str, terminal: Terminal) -> Path | None:
    """Writes the traceback into the run's logs when there is a run, else into the cache, else into
    the temporary folder. None if no folder takes it."""
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder in _folders(terminal):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / name
            path.write_text(f"evotune {__version__}\n{text}", encoding="utf-8")
            return path
    return None


def _folders(terminal: Terminal) -> Iterator[Path]:
    if terminal.crash_folder is not None:
        yield terminal.crash_folder
    with contextlib.suppress(ImportError):
        from evotune.util.files import default_cache_dir

        yield default_cache_dir() / "crashes"
    yield Path(tempfile.gettempdir())


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"evotune {__version__}")
        ctx.exit()


application = Application(
    name="evotune",
    help="Evolve kernel configurations: compile, check and time each one against a baseline.",
    epilog="\b\nExample:\n  evotune run attention-cpu --minutes 5\n  evotune top latest",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version and exit.",
        ),
        *global_options(),
    ],
)


def main(arguments: list[str] | None = None) -> Any:
    """Runs the command line and exits the process with its code."""
    keep_going_without_stderr()
    forget_useless_sizes()
    for stream in (sys.stdout, sys.stderr):
        # Where the stream's encoding lacks a character, its escape is printed: no exception.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return application.main(args=arguments, prog_name="evotune")
    except OSError as error:  # of the help or the version, which are written before a command runs
        sys.exit(_unexpected(error, Terminal()))
