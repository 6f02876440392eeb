"""Decides which kernel serves a case, and with which launches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ._case_expressions import Names, NoValue, evaluate, whole

CONTIGUOUS = "contiguous"
STRIDED = "strided"
NOT_WON = "not measured to win"
OUTSIDE = "outside the domain"
LAYOUT = "layout"
_INTEGER_BITS = {"int32": 32, "int64": 64}
_SHARED_BYTES = "dynamic_shared_bytes"


class Choice(NamedTuple):
    """The kernel of a case.

    - kernel: its place in the list of kernels.
    - binary: the description of its machine code for the case.
    - plan: arguments, workspaces and launches, in numbers.
    """

    kernel: int
    binary: Mapping[str, Any]
    plan: dict[str, Any]


class Dispatch:
    """The kernels of a package and the regions of cases that each may serve."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._kernels = description["kernels"]
        self._served = description["served"]
        self._domain = description["domain"]
        self._quantities = description.get("quantities", {})
        self._timed = description.get("timed", [])
        self.shapes: Mapping[str, Any] = description.get("shapes", {})
        self.takes_strides = any(
            region.get("layout") == STRIDED for region in (*self._served, *self._domain)
        )

    def choose(
        self, symbols: Mapping[str, Any], layout: str, *, anywhere: bool = False
    ) -> Choice | str:
        """The kernel that was measured to win on the case, or the kind of miss.

        With `anywhere` a kernel that was checked on the case is enough.
        """
        names = Names(symbols, self._quantities)
        for regions in (self._served, self._domain) if anywhere else (self._served,):
            for region in self._around(names, regions):
                if _takes(region, layout) and (choice := self._choice(region, symbols)):
                    return choice
        if any(not _takes(region, layout) for region in self._around(names, self._served)):
            return LAYOUT
        return NOT_WON if any(self._around(names, self._domain)) else OUTSIDE

    def fixes(self, name: str) -> bool:
        """Whether regions fix the symbol."""
        return any(name in region["fixed"] for region in self._domain)

    def masks(self) -> set[tuple[str, str]]:
        """The kinds of masks that served regions have, each with the type of a bias."""
        fixed = (region["fixed"] for region in self._served)
        return {(each["mask"], each["mask_dtype"]) for each in fixed if each.get("mask")}

    def has(self, symbols: Mapping[str, Any]) -> bool:
        """Whether a served region has no other values of these symbols."""
        return any(
            all(_equal(symbols.get(name, value), value) for name, value in region["fixed"].items())
            for region in self._served
        )

    def extents(self, tensor: str, symbols: Mapping[str, Any]) -> tuple[int, ...]:
        """The shape of a tensor in the case."""
        names = Names(symbols, self._quantities)
        return tuple(whole(evaluate(extent, names)) for extent in self.shapes[tensor])

    def exact_cases(self) -> list[dict[str, Any]]:
        """The symbols of the cases that were timed themselves and are served."""
        if self._timed:
            return [dict(symbols) for symbols in self._timed]
        return [
            {
                **region["fixed"],
                **{name: low for name, (low, _) in region["ranges"].items()},
                **({"mask_sizes": region["mask_sizes"][0]} if "mask_sizes" in region else {}),
            }
            for region in self._served
            if not region["near"]
        ]

    def never_checked(self, symbols: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes of the case that no check had, alone or together, although they lie within the
        checked ranges. {} if the case lies outside of these."""
        names = Names(symbols, self._quantities)
        for region in self._domain:
            with contextlib.suppress(NoValue):
                if _in_ranges(region, names):
                    return _never_executed(region, names)
        return {}

    def checked_ranges(self) -> list[Mapping[str, Any]]:
        """The ranges of the regions in which kernels were checked."""
        return [region["ranges"] for region in self._domain]

    def regions(self) -> list[dict[str, Any]]:
        """The served regions, in words."""
        return [dict(region) for region in self._served]

    def _around(
        self, names: Names, regions: Iterable[Mapping[str, Any]]
    ) -> Iterable[Mapping[str, Any]]:
        return (region for region in regions if _inside(region, names))

    def _choice(self, region: Mapping[str, Any], symbols: Mapping[str, Any]) -> Choice | None:
        """None if a guard refuses the case, an expression has no value there, or no machine code
        was made or checked for it."""
        number = region["kernel"]
        kernel = self._kernels[number]
        names = Names(symbols, kernel.get("let", {}))
        try:
            for binary in kernel["binaries"]:
                if all(_equal(names[name], value) for name, value in binary["fixed"].items()):
                    if not self._was_checked(number, binary, symbols):
                        continue  # another binary may have been checked on the case
                    if not all(evaluate(guard, names) for guard in kernel["guards"]):
                        return None
                    return Choice(number, binary, _in_numbers(kernel["plan"], binary, names))
        except NoValue:
            return None
        return None

    def _was_checked(
        self, kernel: int, binary: Mapping[str, Any], symbols: Mapping[str, Any]
    ) -> bool:
        """Whether the case lies in the domain of this machine code by itself. If a kernel has
        several for the same regions, their domains state their compiled-in values in `compiled`."""
        own = [each for each in self._domain if each["kernel"] == kernel]
        alike = [each for each in own if each.get("compiled", binary["fixed"]) == binary["fixed"]]
        names = Names(symbols, self._quantities)
        return len(alike) == len(own) or any(self._around(names, alike))


def _takes(region: Mapping[str, Any], layout: str) -> bool:
    """Contiguous tensors are strided ones too. Layouts of other names are not known here."""
    return region.get("layout", CONTIGUOUS) in (STRIDED, layout)


def _inside(region: Mapping[str, Any], names: Names) -> bool:
    try:
        return (
            _in_ranges(region, names)
            and not _never_executed(region, names)
            and _is_broadcast_so(region, names)
        )
    except NoValue:
        return False


def _is_broadcast_so(region: Mapping[str, Any], names: Names) -> bool:
    """Whether the mask is broadcast in one of the region's ways. A dimension in which the case has
    size 1 is read at index 0 alone, whatever its stride."""
    if "mask_sizes" not in region:
        return True
    own = names["mask_sizes"].split()
    return any(
        all(word in ("-", other) for word, other in zip(own, each.split(), strict=True))
        for each in region["mask_sizes"]
    )


def _in_ranges(region: Mapping[str, Any], names: Names) -> bool:
    return all(_equal(names[name], value) for name, value in region["fixed"].items()) and all(
        _within(names[name], low, high) for name, (low, high) in region["ranges"].items()
    )


def _never_executed(region: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """The sizes of a pair that were not executed together, in bands, or a length that was not
    executed by itself, if the region says which ones were."""
    for pair, boxes in region.get("pairs", {}).items():
        sizes = {name: names[name] for name in pair.split()}
        if not any(
            all(low <= size <= high for size, (low, high) in zip(sizes.values(), box, strict=True))
            for box in boxes
        ):
            return sizes
    for name, ranges in region.get("lengths", {}).items():
        if not any(low <= names[name] <= high for low, high in ranges):
            return {name: names[name]}
    return {}


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return math.isclose(found, wanted)
    return bool(found == wanted)


def _within(found: Any, low: Any, high: Any) -> bool:
    return low <= found <= high or _equal(found, low) or _equal(found, high)


def _in_numbers(plan: Mapping[str, Any], binary: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """The plan with every expression evaluated."""

    def whole(expression: Any) -> int:
        return int(_scalar("int64", evaluate(expression, names)))

    shared = binary.get("resources", {}).get(_SHARED_BYTES)
    return {
        "entry": plan["entry"],
        "arguments": [
            _argument(argument, names)
            for argument in plan["arguments"]
            if evaluate(argument.get("when", True), names)
        ],
        "workspaces": [
            {**workspace, "bytes": whole(workspace["bytes"])} for workspace in plan["workspaces"]
        ],
        "launches": [
            {
                "entry": launch["entry"],
                "grid": [whole(extent) for extent in launch["grid"]],
                "block": [whole(extent) for extent in launch["block"]],
                "shared_bytes": whole(launch["shared_bytes"]) if shared is None else int(shared),
            }
            for launch in plan["launches"]
            if evaluate(launch.get("when", True), names)
        ],
        "constant_memory": [
            {**constant, "bytes": whole(constant["bytes"])}
            for constant in plan.get("constant_memory", ())
        ],
    }


def _argument(argument: Mapping[str, Any], names: Names) -> dict[str, Any]:
    if argument["type"] == "tensor_map":
        given = argument["tensor_map"]
        return {
            **argument,
            "tensor_map": {
                "dtype": given["dtype"],
                "extents": [int(evaluate(each, names)) for each in given["extents"]],
                "box": [int(evaluate(each, names)) for each in given["box"]],
                "swizzle_bytes": int(evaluate(given.get("swizzle_bytes", 0), names)),
                "l2_promotion_bytes": int(evaluate(given.get("l2_promotion_bytes", 0), names)),
                "strides": [int(evaluate(each, names)) for each in given.get("strides", ())],
            },
        }
    if not evaluate(argument.get("given", True), names):  # of a tensor that the case lacks
        return {"type": "int64", "value": 0}
    if "value" in argument:
        return {**argument, "value": _scalar(argument["type"], evaluate(argument["value"], names))}
    return {name: value for name, value in argument.items() if name != "given"}


def _scalar(kind: str, value: Any) -> int | float:
    """The value as a number of the C type. Raises NoValue if the type cannot hold it."""
    bits = _INTEGER_BITS.get(kind)
    if bits is None:
        return float(value)
    if int(value) != value or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise NoValue(f"{value} does not fit {kind}")
    return int(value)
