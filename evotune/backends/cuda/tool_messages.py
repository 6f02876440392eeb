"""Messages to this backend's own programs, which read one message from a file each."""

from __future__ import annotations

import msgspec
from msgspec.msgpack import Decoder

from evotune.backends.base.backend import SanitizedCase
from evotune.backends.base.evidence import BaselineRequest
from evotune.backends.base.launch import CompileJob

PERTURBED_BUILD: Decoder[CompileJob] = Decoder(CompileJob)
"""The message to the programs that compile a job again: `perturbed_build` and `ptx_view`."""


class SanitizedLaunches(msgspec.Struct, frozen=True, tag=True):
    """Requests one launch of each case. With `poison`, outputs and scratch memory are filled with
    NaN before."""

    cases: tuple[SanitizedCase, ...]
    poison: bool


SANITIZED_LAUNCHES: Decoder[SanitizedLaunches] = Decoder(SanitizedLaunches)
PROFILED_LAUNCH: Decoder[SanitizedCase] = Decoder(SanitizedCase)
PROFILED_BASELINE: Decoder[BaselineRequest] = Decoder(BaselineRequest)
