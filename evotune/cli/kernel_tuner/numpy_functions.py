"""The results of NumPy's functions: their shapes and types, without data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from evotune.cli.kernel_tuner.arithmetic import (
    NoNumber,
    ceiling,
    combine,
    floating,
    integer,
    opaque,
    product,
    total,
)
from evotune.cli.kernel_tuner.values import (
    Array,
    Dotted,
    Formula,
    Leaf,
    Listed,
    Nothing,
    Number,
    Text,
    Value,
    constant,
)

Arguments = Sequence[Value]
Keywords = Mapping[str, Value]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool_")
FLOATS = ("float16", "float32", "float64")
_ALIASES = {"single": "float32", "double": "float64", "half": "float16", "intc": "int32"}
_PYTHONS = {"builtins.float": "float64", "builtins.int": "int64", "builtins.bool": "bool_"}
_RANDOM_SHAPES = ("randn", "rand")
_RANDOM_SIZES = (
    *("random", "random_sample", "ranf", "sample", "standard_normal"),
    *("normal", "uniform", "randint", "integers"),
)
_PLACES = {"normal": 2, "uniform": 2, "randint": 2, "integers": 2}
ELEMENTWISE = (
    *("sqrt", "exp", "log", "sin", "cos", "tan", "tanh", "abs", "absolute", "square"),
    *("maximum", "minimum", "add", "subtract", "multiply", "divide", "power"),
)
_ON_TWO = {
    **{"maximum": "max", "minimum": "min", "add": "+", "subtract": "-", "multiply": "*"},
    **{"divide": "/", "power": "**"},
}
"""The elementwise functions that are operations of two numbers."""
_MATH = {
    "sqrt": math.sqrt,
    "log2": math.log2,
    "log": math.log,
    "exp": math.exp,
    "log10": math.log10,
}
_MOST_DIMENSIONS = 16


class NotRead(Exception):
    """The result of a call cannot be told. The message says why."""


def dtype_of(value: Value) -> str:
    """NumPy's name of the type that `numpy.float32`, `"float32"` or `float` stands for; "" when the
    value is no known type."""
    if isinstance(value, Text):
        name = value.text
    elif isinstance(value, Dotted):
        if value.path in _PYTHONS:
            return _PYTHONS[value.path]
        module, _, name = value.path.rpartition(".")
        if module != "numpy":
            return ""
    else:
        return ""
    name = _ALIASES.get(name, name)
    return name if name in (*INTEGERS, *FLOATS) else ""


def call(path: str, arguments: Arguments, keywords: Keywords) -> Value:
    """The result of the function at `path`; NotRead or NoNumber when it cannot be told."""
    module, _, name = path.rpartition(".")
    kind = dtype_of(Dotted(path))
    if kind and len(arguments) == 1:
        return _scalar(arguments[0], kind)
    if module in ("numpy.random", "generator"):
        return _random(name, arguments, keywords)
    if module in ("numpy", "math", "builtins"):
        for known, function in (
            (_MAKERS, _maker),
            (_NUMBERS, _number),
            (ELEMENTWISE, _elementwise),
        ):
            if name in known:
                found = function(name, arguments, keywords)
                if found is not None:
                    return found
        if name in ("dot", "matmul"):
            return matrix_product(*_arrays(arguments, 2))
        if name in ("transpose",):
            return transposed(*_arrays(arguments, 1))
    raise NotRead(f"{path.removeprefix('builtins.')}() is a function that evotune does not know")


def shape_of(value: Value) -> tuple[Number, ...]:
    items = value.items if isinstance(value, Listed) else [value]
    if not items or len(items) > _MOST_DIMENSIONS:
        raise NotRead("a shape has 1 to 16 sizes")
    found = []
    for item in items:
        if not isinstance(item, Number):
            raise NotRead("a size in the shape is not known")
        found.append(integer(item))
    return tuple(found)


def cast(array: Array, dtype: str) -> Array:
    if not dtype:
        raise NotRead("the element type is not known")
    if array.formula is not None:
        return Array(array.shape, dtype, array.maker, array.formula)
    return Array(array.shape, dtype, array.maker, None, array)


def reshaped(array: Array, shape: tuple[Number, ...]) -> Array:
    open_places = [i for i, size in enumerate(shape) if size.value == -1]
    if open_places:
        rest = product([size for size in shape if size.value != -1])
        missing = combine("//", product(array.shape), rest)
        shape = tuple(missing if size.value == -1 else size for size in shape)
    if math.prod(size.value for size in shape) != math.prod(size.value for size in array.shape):
        raise NotRead("the shape has another number of elements")
    return Array(shape, array.dtype, array.maker)


def elementwise(name: str, first: Value, *others: Value) -> Value:
    """The result of an operator or a function on arrays and numbers, element by element."""
    operands: list[Array | Number] = []
    shape: tuple[Number, ...] = ()
    for value in (first, *others):
        if not isinstance(value, Array | Number):
            raise NotRead("an operand is neither an array nor a number")
        operands.append(value)
        if isinstance(value, Array) and value.shape:
            if shape and [a.value for a in shape] != [b.value for b in value.shape]:
                raise NotRead("arrays of different shapes are combined")
            shape = shape or value.shape
    kinds = [value.dtype for value in operands if isinstance(value, Array)]
    widest = max(kinds, key=lambda kind: (kind in FLOATS, kind[-2:].rjust(2, "0")))
    return Array(shape, widest, "computed", Formula(name, tuple(operands)))


def matrix_product(first: Array, second: Array) -> Array:
    if len(first.shape) != 2 or len(second.shape) != 2:
        raise NotRead("the product is not of two matrices")
    if first.shape[1].value != second.shape[0].value:
        raise NotRead("the matrices do not fit together")
    shape = (first.shape[0], second.shape[1])
    return Array(shape, first.dtype, "computed", Formula("@", (first, second)))


def transposed(array: Array) -> Array:
    if len(array.shape) != 2:
        raise NotRead("only a matrix can be transposed")
    return Array(array.shape[::-1], array.dtype, "computed", Formula("T", (array,)))


def _scalar(value: Value, kind: str) -> Value:
    if isinstance(value, Array):
        return cast(value, kind)
    if not isinstance(value, Number):
        raise NotRead("the number is not known")
    return integer(value, kind) if kind in INTEGERS else floating(value, kind)


def _random(name: str, arguments: Arguments, keywords: Keywords) -> Value:
    if name in ("default_rng", "RandomState", "Generator"):
        return Dotted("generator")
    if name == "seed":
        return Nothing()
    dtype = dtype_of(keywords["dtype"]) if "dtype" in keywords else "float64"
    if name in ("randint", "integers"):
        dtype = dtype_of(keywords["dtype"]) if "dtype" in keywords else "int64"
    size: Value | None = None
    if name in _RANDOM_SHAPES:
        size = Listed(list(arguments)) if arguments else None
    elif name in _RANDOM_SIZES:
        place = _PLACES.get(name, 0)
        size = arguments[place] if len(arguments) > place else keywords.get("size")
    if size is None or not dtype:
        raise NotRead("it is a single random number, or of a kind that evotune does not know")
    return Array(shape_of(size), dtype, "random")


_MAKERS = (
    *("zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "full_like"),
    *("arange", "linspace", "array", "asarray", "ascontiguousarray", "copy"),
)


def _maker(name: str, arguments: Arguments, keywords: Keywords) -> Value | None:
    first = arguments[0] if arguments else keywords.get("shape")
    place = 2 if name.startswith("full") else 1
    stated = keywords.get("dtype")
    if stated is None and len(arguments) > place and name not in ("arange", "linspace"):
        stated = arguments[place]
    dtype = dtype_of(stated) if stated is not None else "float64"
    if not dtype:
        raise NotRead("the element type is not known")
    if name.endswith("_like"):
        if not isinstance(first, Array):
            raise NotRead("the array whose shape it takes is not known")
        kind = first.dtype if stated is None else dtype
        return Array(first.shape, kind, name.removesuffix("_like"))
    if name in ("arange", "linspace"):
        return _counted(name, arguments, keywords, dtype if stated is not None else "")
    if name in ("array", "asarray", "ascontiguousarray", "copy"):
        if isinstance(first, Array):
            return cast(first, first.dtype if stated is None else dtype)
        if isinstance(first, Listed) and all(isinstance(item, Number) for item in first.items):
            whole = all(isinstance(i.value, int) for i in first.items if isinstance(i, Number))
            kind = dtype if stated is not None else "int64" if whole else "float64"
            return Array((constant(len(first.items)),), kind, "array")
        raise NotRead("a value is not a number that evotune knows")
    if first is None:
        raise NotRead("the shape is missing")
    return Array(shape_of(first), dtype, name)


_COUNTED = {
    "arange": {"dtype"},
    "linspace": {"start", "stop", "num", "endpoint", "dtype"},
}
"""By function: the keywords that it may have. They keep the length, or are read."""


def _counted(name: str, arguments: Arguments, keywords: Keywords, dtype: str) -> Array:
    overlooked = keywords.keys() - _COUNTED[name]
    if overlooked:
        raise NotRead(f"{name}() with the keyword {min(overlooked)} is not followed")
    if name == "linspace":
        size = arguments[2] if len(arguments) > 2 else keywords.get("num", constant(50))
        return Array(shape_of(size), dtype or "float64", "random")
    numbers = [value for value in arguments if isinstance(value, Number)]
    if len(numbers) != len(arguments) or not 1 <= len(numbers) <= 3:
        raise NotRead("the ends of the range are not known")
    start, stop, step = (constant(0), *numbers, constant(1))[-3:] if len(numbers) == 1 else (
        *numbers, constant(1))[:3]  # fmt: skip
    length = ceiling(combine("/", combine("-", stop, start), step))
    if start.tree == 0 and step.tree == 1:
        length = integer(stop)
    whole = all(isinstance(number.value, int) for number in numbers)
    return Array((integer(length),), dtype or ("int64" if whole else "float64"), "arange")


_NUMBERS = ("prod", "sum", "max", "min", "amax", "amin", "ceil", "floor", "len", "int", "float",
            "abs", "sqrt", "log2", "log", "exp", "log10", "pow", "round")  # fmt: skip


def _number(name: str, arguments: Arguments, keywords: Keywords) -> Value | None:
    """The result of a function of numbers. None when the first argument is an array and another
    function must handle it."""
    first = arguments[0] if arguments else None
    if name == "len":
        return _length(first)
    if isinstance(first, Array):
        if name in ("max", "min", "sum", "prod", "amax", "amin") and not keywords:
            return Array((), first.dtype, "computed", Formula(name, (first,)))
        return None
    if name in ("max", "min", "amax", "amin") and isinstance(first, Listed) and first.tunable:
        numbers = _all_numbers(first.items)
        value = (max if "max" in name else min)(number.value for number in numbers)
        return tunable_number(first.tunable, value)
    items = first.items if len(arguments) == 1 and isinstance(first, Listed) else list(arguments)
    numbers = _all_numbers(items)
    if not numbers:
        raise NotRead("it is called without numbers")
    return _of_numbers(name, numbers)


def tunable_number(tunable: str, value: int | float) -> Number:
    """A value of a tunable, as a number that knows the tunable: if a shape depends on the number,
    the tunable becomes a size."""
    return Number(value, Leaf(tunable, value, tunable))


def _of_numbers(name: str, numbers: list[Number]) -> Number:
    name = name.removeprefix("a") if name in ("amax", "amin") else name
    if name in ("max", "min", "pow") and len(numbers) > 1:
        return combine("**" if name == "pow" else name, *numbers)
    if name in _ON_LISTS:
        return _ON_LISTS[name](numbers)
    first = numbers[0]
    if name in ("max", "min") or (name in ("abs", "round", "floor") and _is_natural(first)):
        return first
    if name in _ON_ONE:
        return _ON_ONE[name](first)
    if name not in _MATH:
        raise NotRead(f"{name}() of this is not followed")
    try:
        return opaque(_MATH[name](first.value), numbers)
    except (ArithmeticError, ValueError) as error:
        raise NoNumber(str(error)) from error


def _is_natural(number: Number) -> bool:
    return isinstance(number.value, int) and number.value >= 0


def _floor(number: Number) -> Number:
    return integer(number) if number.value >= 0 else opaque(math.floor(number.value), [number])


_ON_LISTS: Mapping[str, Callable[[Sequence[Number]], Number]] = {"prod": product, "sum": total}
_ON_ONE: Mapping[str, Callable[[Number], Number]] = {
    "ceil": ceiling,
    "floor": _floor,
    "int": integer,
    "float": floating,
    "abs": lambda number: opaque(abs(number.value), [number]),
}


def _length(value: Value | None) -> Number:
    if isinstance(value, Array) and value.shape:
        return value.shape[0]
    if isinstance(value, Listed):
        return constant(len(value.items))
    raise NotRead("the length is not known")


def _all_numbers(items: Sequence[Value]) -> list[Number]:
    found = [item for item in items if isinstance(item, Number)]
    if len(found) != len(items):
        raise NotRead("a value is not a number that evotune knows")
    return found


def _elementwise(name: str, arguments: Arguments, keywords: Keywords) -> Value | None:
    if keywords or not arguments:
        raise NotRead("it is called in a way that evotune does not know")
    numbers = [value for value in arguments if isinstance(value, Number)]
    if len(numbers) < len(arguments):
        return elementwise(name, *arguments)
    if name in _ON_TWO and len(numbers) == 2:
        return combine(_ON_TWO[name], *numbers)
    raise NotRead(f"{name}() of numbers alone is not followed")


def _arrays(arguments: Arguments, count: int) -> list[Array]:
    found = [value for value in arguments if isinstance(value, Array)]
    if len(found) != len(arguments) or len(found) != count:
        raise NotRead("an operand is not an array that evotune knows")
    return found


METHODS: Mapping[str, Callable[[Array, Arguments, Keywords], Value]] = {
    "astype": lambda array, words, keys: cast(
        array, dtype_of(words[0] if words else keys.get("dtype", Nothing()))
    ),
    "reshape": lambda array, words, keys: reshaped(
        array, shape_of(words[0] if len(words) == 1 else Listed(list(words)))
    ),
    "ravel": lambda array, words, keys: reshaped(array, (product(array.shape),)),
    "flatten": lambda array, words, keys: reshaped(array, (product(array.shape),)),
    "copy": lambda array, words, keys: cast(array, array.dtype),
    "dot": lambda array, words, keys: matrix_product(*_arrays([array, *words], 2)),
    "transpose": lambda array, words, keys: transposed(array),
}
