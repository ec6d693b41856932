"""Records as plain JSON values and back, to the last bit, from their annotations.

Nothing but numpy is needed: workers in environments of their own have no more. What is read is
never imported, looked up or called: a value becomes what the annotation names, or is refused.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import reprlib
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from typing import cast as as_type

import numpy as np
from numpy.typing import NDArray

from evalguard.core.settings import Value
from evalguard.errors import EvaluationError, nearest

T = TypeVar("T")


class PlainError(EvaluationError):
    """A value cannot travel, or what arrived is not what was declared; ``path`` says where."""

    def __init__(self, problem: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem = problem
        self.path = path

    def under(self, step: str) -> PlainError:
        """Return this error as seen from one level further out."""
        return PlainError(self.problem, path=step + self.path)


@dataclasses.dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """Two functions, each the inverse of the other; both raise ``PlainError``."""

    encode: Callable[[T], Value]
    decode: Callable[[Value], T]


@cache
def codec_of(kind: Any, root: str = "") -> Codec[Any]:
    """Return the codec of a type as it is annotated.

    Of text, numbers, truth values, None, literals, ``Value``, and Any for what is plain already;
    of arrays of numbers, of one dimension
    or of ``n`` by ``Annotated[NDArray[...], n]``, of any type and shape by ``NDArray[generic]``;
    tuples, mappings from text, and dataclasses of them: an object with exactly its fields. Floats
    and arrays are base64 of their little-endian bytes: JSON has no NaN, and every bit must survive.

    Args:
        root: what the paths of errors begin with.

    Raises:
        TypeError: it holds something else.
    """
    if root:
        inner = codec_of(kind)
        return Codec(
            lambda value: _convert(inner.encode, value, root),
            lambda value: _convert(inner.decode, value, root),
        )
    if dataclasses.is_dataclass(kind):
        return _record(as_type("type[Any]", kind))
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    kind = _expand_alias(kind)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _array_of(inside[0], dimensions=inside[1])
    if origin is np.ndarray:
        return _array_of(kind, dimensions=1)
    if origin is Literal:
        return _one_of(inside)
    if origin in (Union, UnionType):
        return _union(inside)
    if origin is tuple and len({*inside} - {Ellipsis}) == 1:
        return _sequence(codec_of(inside[0]))
    if origin is Mapping and inside[0] is str:
        return _mapping_of(codec_of(inside[1]))
    raise TypeError(f"no codec for {kind}")


def _expand_alias(kind: Any) -> Any:
    """What an alias of Python 3.12 (``type NDArray[T] = ...``, as in numpy 2.5) stands for."""
    meant = getattr(get_origin(kind), "__value__", None)
    return kind if meant is None else meant[get_args(kind)]


def _union(inside: tuple[Any, ...]) -> Codec[Any]:
    members = [member for member in inside if member is not NoneType]
    if len(members) == 1:
        codec = codec_of(members[0])
        return Codec(
            lambda value: None if value is None else codec.encode(value),
            lambda value: None if value is None else codec.decode(value),
        )
    if {bool, int, float, str} <= {*members}:  # ``Value``, which names itself in what it holds
        return PLAIN
    if all(get_origin(member) is Literal for member in members):
        return _one_of(tuple(choice for member in members for choice in get_args(member)))
    raise TypeError(f"no codec for one of {inside}")


def _unexpected(wanted: str, found: object) -> PlainError:
    # reprlib looks only so deep and so far: what was found may be nested or large without end.
    shown = reprlib.repr(found)[:60]
    return PlainError(f"expected {wanted}, found {type(found).__name__} {shown}")


def _convert(convert: Callable[[Any], T], value: Any, step: str) -> T:
    try:
        return convert(value)
    except PlainError as error:
        raise error.under(step) from None


def _scalar(kind: type[T]) -> Codec[T]:
    """The codec of str, int or bool; numpy's scalars are taken, bool is not an int."""

    def check(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _unexpected(kind.__name__, value)
        return value

    return Codec(check, check)


def _plain(value: Any) -> Value:
    """Return ``value`` if JSON can say it and give back the same; numpy's scalars are unpacked."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return as_type("Value", value)
    if isinstance(value, list):
        return _convert_items(_plain, value)
    if isinstance(value, dict):
        return _convert_values(_plain, value)
    raise _unexpected("a JSON value", value)


def _plain_value(value: Any) -> Value:
    try:
        return _plain(value)
    except RecursionError:
        raise PlainError("nested too deep") from None


def _encode_float(value: Any) -> Value:
    if isinstance(value, bool) or not isinstance(value, float | int | np.floating):
        raise _unexpected("a float", value)
    return base64.b64encode(struct.pack("<d", value)).decode("ascii")


def _decode_float(value: Value) -> float:
    raw = _from_base64(value, "base64 of a float")
    if len(raw) != 8:
        raise PlainError(f"expected one float, found {len(raw)} bytes")
    return float(struct.unpack("<d", raw)[0])


def _from_base64(value: Value, wanted: str) -> bytes:
    if not isinstance(value, str):
        raise _unexpected(wanted, value)
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise PlainError(f"not base64 ({error}): {value[:60]!r}") from error


PLAIN: Codec[Any] = Codec(_plain_value, _plain_value)
_SIMPLE: Mapping[Any, Codec[Any]] = {
    Any: Codec(lambda value: value, lambda value: value),
    str: _scalar(str),
    int: _scalar(int),
    bool: _scalar(bool),
    float: Codec(_encode_float, _decode_float),
}


def _one_of(choices: tuple[Any, ...]) -> Codec[Any]:
    def check(value: Any) -> Any:
        if any(value is choice or value == choice for choice in choices):
            return value
        raise PlainError(f"expected one of {list(choices)}, found {value!r}")

    return Codec(check, check)


def _convert_items(convert: Callable[[Any], T], values: Iterable[Any]) -> list[T]:
    return [_convert(convert, value, f"[{index}]") for index, value in enumerate(values)]


def _convert_values(convert: Callable[[Any], T], values: Mapping[Any, Any]) -> dict[str, T]:
    for key in values:
        if not isinstance(key, str):
            raise _unexpected("a string as key", key)
    return {key: _convert(convert, value, f"[{key!r}]") for key, value in values.items()}


def _sequence(item: Codec[Any]) -> Codec[Any]:
    """The codec of a tuple; any sequence may be encoded."""

    def decode(value: Value) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _unexpected("a list", value)
        return tuple(_convert_items(item.decode, value))

    return Codec(lambda values: _convert_items(item.encode, values), decode)


def _mapping_of(item: Codec[Any]) -> Codec[Any]:
    """The codec of a mapping from names, which keeps its order."""

    def decode(value: Value) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        return _convert_values(item.decode, value)

    def encode(values: Any) -> Value:
        if not isinstance(values, Mapping):
            raise _unexpected("a mapping", values)
        return _convert_values(item.encode, values)

    return Codec(encode, decode)


def _record(kind: type[Any]) -> Codec[Any]:
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.name: codec_of(hints[field.name]) for field in dataclasses.fields(kind)}

    def encode(value: Any) -> Value:
        if not isinstance(value, kind):
            raise _unexpected(kind.__name__, value)
        return {
            name: _convert(codec.encode, getattr(value, name), f".{name}")
            for name, codec in fields.items()
        }

    def decode(value: Value) -> Any:
        if not isinstance(value, dict):
            raise _unexpected(f"{kind.__name__} as an object", value)
        for name in value.keys() - fields.keys():
            raise PlainError(f"{kind.__name__} has no field '{name}'{nearest(name, fields)}")
        for name in fields.keys() - value.keys():
            raise PlainError(f"{kind.__name__} lacks its field '{name}'")
        return kind(
            **{
                name: _convert(codec.decode, value[name], f".{name}")
                for name, codec in fields.items()
            }
        )

    return Codec(encode, decode)


def _array_of(kind: Any, *, dimensions: int) -> Codec[Any]:
    """The codec of arrays: their shape, and their little-endian bytes; of any numbers their type.

    Of ``generic`` any type of numbers and any shape may travel, and the type travels with them.
    """
    (element,) = get_args(get_args(_expand_alias(kind))[1])
    wanted_type = None if element is np.generic else np.dtype(element)
    what = f"an array of {wanted_type} with {dimensions} dimensions"
    wanted = "an array of numbers" if wanted_type is None else what
    keys = {"shape", "data"} | ({"dtype"} if wanted_type is None else set())
    shape_of: Codec[tuple[int, ...]] = codec_of(tuple[int, ...])

    def fits(dtype: np.dtype[Any], rank: int) -> bool:
        if wanted_type is None:
            return dtype.kind in "biufc"
        return (dtype, rank) == (wanted_type, dimensions)

    def encode(value: Any) -> Value:
        if not isinstance(value, np.ndarray) or not fits(value.dtype, value.ndim):
            raise PlainError(f"expected {wanted}, found {_describe(value)}")
        little = value.dtype.newbyteorder("<")
        data = base64.b64encode(np.ascontiguousarray(value, dtype=little).tobytes())
        encoded: dict[str, Value] = {"shape": [*value.shape], "data": data.decode("ascii")}
        return encoded if wanted_type is not None else {"dtype": little.str, **encoded}

    def decode(value: Value) -> NDArray[Any]:
        if not isinstance(value, dict) or value.keys() != keys:
            raise PlainError(f"expected {wanted}, found {_describe(value)}")
        dtype = _read_dtype(value["dtype"]) if wanted_type is None else wanted_type
        shape, raw = shape_of.decode(value["shape"]), _from_base64(value["data"], wanted)
        size = math.prod(shape) * dtype.itemsize
        if not fits(dtype, len(shape)) or min(shape, default=0) < 0 or len(raw) != size:
            raise PlainError(f"{len(raw)} bytes of shape {shape} are not {wanted}")
        return np.frombuffer(raw, dtype=dtype.newbyteorder("<")).astype(dtype).reshape(shape)

    return Codec(encode, decode)


def _read_dtype(value: Value) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(_SIMPLE[str].decode(value))
        return dtype.newbyteorder("=")
    except (TypeError, ValueError, SyntaxError) as error:
        raise PlainError(f"no type of numbers: {reprlib.repr(value)}") from error


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"one of {value.dtype} with {value.ndim}"
    return type(value).__name__
