"""The kernel's arguments: which of them are tensors, which tensors it writes, and their type."""

from __future__ import annotations

from collections.abc import Sequence

from evotune.cli.kernel_tuner.kernel_source import KernelSource
from evotune.cli.kernel_tuner.script import TuneCall
from evotune.cli.kernel_tuner.values import NAME, Array, Listed, Nothing, Number, Table
from evotune.util.words import did_you_mean

SCALARS = {
    **{"int32": "int32", "int64": "int64", "uint32": "int32", "uint64": "int64"},
    **{"float32": "float32", "float64": "float64"},
}
_DTYPES = ("float16", "float32")
_TAKEN = ("self", "torch", "dtype", "device")


class Arguments:
    """The kernel's arguments. ScriptError, one line, for an argument that a problem cannot have.

    - values: all arguments in their order
    - constant_memory: the arrays in constant memory, by symbol
    - arrays: every array once
    - inputs: the arrays that the kernel only reads, each once
    - outputs: the arrays that it writes, each once
    - dtype: the one element type of all arrays
    """

    def __init__(
        self, call: TuneCall, source: KernelSource, entry: str, stated: Sequence[str]
    ) -> None:
        self._call = call
        self._signature = source.parameters(entry)
        self.values = self._values(entry)
        self.constant_memory = self._constant_memory()
        self.arrays = self._arrays()
        self.dtype = self._dtype()
        self.outputs = self._outputs(stated)
        self.inputs = [array for array in self.arrays if array not in self.outputs]
        if not self.inputs:
            raise call.error("arguments", "the kernel reads no array; a problem needs inputs")

    @property
    def scalars(self) -> list[Number]:
        return [value for value in self.values if isinstance(value, Number)]

    def _values(self, entry: str) -> list[Array | Number]:
        found = self._call.get("arguments")
        if not isinstance(found, Listed):
            hint = "make it a list of arrays and NumPy scalars"
            raise self._call.cannot_tell("arguments", "the kernel's arguments", found, hint)
        signature = self._signature
        if signature is not None and len(signature) != len(found.items):
            message = f"{entry} takes {len(signature)} arguments, the script gives"
            raise self._call.error("arguments", f"{message} {len(found.items)}")
        made: list[Array | Number] = []
        for place, value in enumerate(found.items, start=1):
            if not isinstance(value, Array | Number):
                hint = "make it with NumPy's functions, with a shape and a type"
                raise self._call.cannot_tell("arguments", f"argument {place}", value, hint)
            if isinstance(value, Number) and value.dtype not in SCALARS:
                kind = value.dtype or "a plain number"
                message = f"argument {place} is {kind}; make it numpy.int32(...) or numpy.float32"
                raise self._call.error("arguments", message)
            if isinstance(value, Array) and not value.name:
                value.name = signature[place - 1].name if signature else f"argument_{place}"
            made.append(value)
        return made

    def _constant_memory(self) -> dict[str, Array]:
        found = self._call.get("cmem_args")
        if isinstance(found, Nothing):
            return {}
        if not isinstance(found, Table):
            hint = "make it a dict, symbol -> array"
            raise self._call.cannot_tell("cmem_args", "cmem_args", found, hint)
        made = {}
        for symbol, value in found.items.items():
            if not isinstance(value, Array) or not NAME.fullmatch(symbol):
                hint = "make it an array"
                raise self._call.cannot_tell("cmem_args", f"what {symbol} gets", value, hint)
            value.name = value.name or symbol
            made[symbol] = value
        return made

    def _arrays(self) -> list[Array]:
        """Every array once. Where two have the same name, one of them gets a _ more."""
        found = [value for value in self.values if isinstance(value, Array)]
        if not found:
            raise self._call.error("arguments", "no argument is an array; a problem needs tensors")
        unique = list(dict.fromkeys([*found, *self.constant_memory.values()]))
        names = set(_TAKEN)
        for array in unique:
            while array.name in names:
                array.name += "_"
            names.add(array.name)
        return unique

    def _dtype(self) -> str:
        first = self.arrays[0]
        for array in self.arrays:
            line = array.line or "arguments"
            if array.dtype != first.dtype:
                message = (
                    f"{array.name} has elements of {array.dtype}, {first.name} of {first.dtype}; "
                    "all tensors of a problem have one type"
                )
                raise self._call.error(line, message)
            if array.dtype not in _DTYPES:
                message = (
                    f"{array.name} has elements of {array.dtype}; tensors of a problem are "
                    "float32, float16 or bfloat16"
                )
                raise self._call.error(line, message)
        return first.dtype

    def _outputs(self, stated: Sequence[str]) -> list[Array]:
        arrays = list(dict.fromkeys(value for value in self.values if isinstance(value, Array)))
        by_name = {array.name: array for array in arrays}
        for name in stated:
            if name not in by_name:
                message = f"--output {name}: no such array among the arguments"
                raise self._call.error("arguments", f"{message}{did_you_mean(name, by_name)}")
        found = [by_name[name] for name in dict.fromkeys(stated)]
        found = found or self._answered() or _made_empty(arrays) or self._not_const(arrays)
        if not found:
            known = ", ".join(by_name)
            message = f"cannot tell which arguments the kernel writes ({known}); use --output NAME"
            raise self._call.error("arguments", message)
        for symbol, array in self.constant_memory.items():
            if array in found:
                message = f"{array.name} is an output, and {symbol} is filled from it"
                raise self._call.error("cmem_args", message)
        return found

    def _answered(self) -> list[Array]:
        """The arrays for which `answer` has a value."""
        answer = self._call.get("answer")
        if not isinstance(answer, Listed) or len(answer.items) != len(self.values):
            return []
        pairs = zip(self.values, answer.items, strict=True)
        found = [v for v, e in pairs if isinstance(v, Array) and not isinstance(e, Nothing)]
        return list(dict.fromkeys(found))

    def _not_const(self, arrays: Sequence[Array]) -> list[Array]:
        """The arrays without `const` in the signature, unless that is all of them."""
        pairs = zip(self.values, self._signature or (), strict=False)
        found = [v for v, parameter in pairs if isinstance(v, Array) and not parameter.is_const]
        return list(dict.fromkeys(found)) if len(found) < len(arrays) else []


def _made_empty(arrays: Sequence[Array]) -> list[Array]:
    """The arrays made by zeros or empty, unless that is all of them."""
    found = [array for array in arrays if _maker(array) in ("zeros", "empty")]
    return found if len(found) < len(arrays) else []


def _maker(array: Array) -> str:
    """The function that made the array, also behind casts: `zeros(size).astype(float32)`."""
    while array.same is not None and array.maker not in ("zeros", "empty"):
        array = array.same
    return array.maker
