"""Runs a tool of the machine, a disassembler or a profiler: it may be missing, hang or fail."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evotune.backends.base.held_up import communicate


@dataclass(frozen=True, slots=True)
class Tool:
    """A program under its usual name; `failure` is raised, in one line, where it gives nothing."""

    name: str
    limit_s: float
    failure: type[Exception]

    def run(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs it to its end, whatever its status."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=None if environment is None else dict(environment),
            )
        except OSError as error:
            raise self.failure(f"{self.name} does not start: {error.strerror}") from error
        try:
            with process:
                try:
                    output, errors = communicate(process, self.limit_s)
                except BaseException:
                    process.kill()
                    raise
            return subprocess.CompletedProcess(command, process.returncode, output, errors)
        except subprocess.TimeoutExpired as error:
            raise self.failure(f"{self.name} did not end within {self.limit_s:g} s") from error

    def output(self, command: Sequence[str]) -> str:
        """Its standard output; a failure where its status is not 0."""
        done = self.run(command)
        if done.returncode:
            words = done.stderr.strip().splitlines()
            last = " ".join(words[-1].split()) if words else f"status {done.returncode}"
            raise self.failure(f"{self.name} failed: {last}")
        return done.stdout
