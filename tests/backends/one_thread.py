"""Interprets one thread of PTX, with only the instructions that `ptx_late_copies` writes.

Each memory space is an array of bytes. Original cp.async instructions are not executed but counted.
"""

from __future__ import annotations

import re

_LABEL = re.compile(r"^([A-Za-z_]\w*):$")
_MASKS = {"u8": 0xFF, "u32": 0xFFFFFFFF, "u64": 0xFFFFFFFFFFFFFFFF}


class Thread:
    def __init__(self, ptx: str, shared: bytearray, memory: bytes) -> None:
        body = ptx[ptx.index("{") + 1 : ptx.rindex("}")]
        lines = [line.split("//")[0].strip() for line in body.splitlines()]
        self._code = [line for line in lines if line not in ("", "{", "}")]
        self._labels = {m[1]: i for i, line in enumerate(self._code) if (m := _LABEL.match(line))}
        self._registers: dict[str, int] = {}
        self._spaces = {"shared": shared, "global": memory, "local": bytearray(1 << 12)}
        self._local_end = 0
        self.left_as_they_were = 0
        self.seen: list[bytes] = []

    def run(self) -> None:
        at = 0
        while at < len(self._code):
            at = self._step(self._code[at].rstrip(";"), at)

    def _step(self, line: str, at: int) -> int:
        if line.startswith("@"):
            predicate, line = line[1:].split(None, 1)
            if bool(self._value(predicate.lstrip("!"))) == predicate.startswith("!"):
                return at + 1
        if line.startswith(".local"):
            name, size = re.findall(r"(\w+)\[(\d+)\]", line)[0]
            self._registers[name] = self._local_end
            self._local_end += int(size)
        elif line.startswith("bra"):
            return self._labels[line.split()[1]]
        elif line.startswith(("cp.async.ca.", "cp.async.cg.")):
            self.left_as_they_were += 1
        elif line == "look":
            self.seen.append(bytes(self._spaces["shared"]))
        elif not (_LABEL.match(line) or line.startswith((".reg", "cp.async"))):
            self._execute(line)
        return at + 1

    def _execute(self, line: str) -> None:
        operation, operands = line.split(None, 1)
        name, *kinds = operation.split(".")
        target, *sources = [operand.strip() for operand in operands.split(",")]
        mask = _MASKS.get(kinds[-1], _MASKS["u32"])
        if name in ("ld", "st"):
            address, width = (sources[0] if name == "ld" else target), (mask.bit_length() // 8)
            base, _, offset = address.strip("[]").partition("+")
            start = self._value(base) + int(offset or 0)
            space = self._spaces[kinds[0]]
            if name == "ld":
                self._registers[target] = int.from_bytes(space[start : start + width], "little")
            else:
                value = self._value(sources[0]) & mask
                assert isinstance(space, bytearray)
                space[start : start + width] = value.to_bytes(width, "little")
            return
        a, b = ([*map(self._value, sources), 0])[:2]
        if name == "setp":
            results = {"lt": a < b, "ge": a >= b, "le": a <= b}
            self._registers[target] = int(results[kinds[0]])
            return
        results_of = {
            "mov": a, "add": a + b, "sub": a - b, "mul": a * b, "and": a & b, "or": a | b,
            "shl": a << b, "shr": a >> b,
        }  # fmt: skip
        wide = name == "mul" and "wide" in kinds
        self._registers[target] = results_of[name] & (_MASKS["u64"] if wide else mask)

    def _value(self, operand: str) -> int:
        return int(operand) if operand.isdigit() else self._registers[operand]
