"""Each parameter of a shipped space changes something: machine code, or how it is launched."""

from __future__ import annotations

import pytest

from evotune.runs.inspect import unread_parameters

from .test_supports import SPACES, document


@pytest.mark.parametrize("space", SPACES)
def test_a_kernel_or_a_launch_reads_each_parameter(space: str) -> None:
    assert unread_parameters(document(space)) == []
