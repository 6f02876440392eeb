"""Messages in files, to processes of this backend that read one each."""

from __future__ import annotations

import msgspec
from msgspec.msgpack import Decoder

from evotune.backends.base import SanitizedCase
from evotune.device.launch import CompileJob

PERTURBED_BUILD: Decoder[CompileJob] = Decoder(CompileJob)


class SanitizedLaunches(msgspec.Struct, frozen=True, tag=True):
    """Launch each case once. With `poison` what a kernel must write is NaN before."""

    cases: tuple[SanitizedCase, ...]
    poison: bool


SANITIZED_LAUNCHES: Decoder[SanitizedLaunches] = Decoder(SanitizedLaunches)
