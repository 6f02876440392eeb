"""Each parameter of a shipped space changes something: machine code, or how it is launched."""

from __future__ import annotations

import re

import pytest
import yaml

from .test_supports import SPACES, document, source

COMMENT = re.compile(r"//.*")
CHOICE_OF_A_KERNEL = "KERNEL"


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", COMMENT.sub("", text)))


@pytest.mark.parametrize("space", SPACES)
def test_a_kernel_or_a_launch_reads_each_parameter(space: str) -> None:
    found = document(space)
    read = {word for kernel in found.kernels for word in words(source(kernel.source))}
    parts = yaml.safe_load(found.text)
    read |= words(yaml.safe_dump([parts.get("kernels"), parts.get("let")]))
    assert {each.parameter.name for each in found.parameters} - {CHOICE_OF_A_KERNEL} <= read
