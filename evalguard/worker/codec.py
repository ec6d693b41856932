"""Codecs: how one type becomes JSON values and comes back, exactly and strictly."""

from __future__ import annotations

import base64
import dataclasses
import reprlib
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import (
    Any,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from evalguard import errors
from evalguard.core.settings import Value
from evalguard.errors import EvalguardError, EvaluationError, nearest

T = TypeVar("T")


class WireError(EvaluationError):
    """A value cannot travel, or what arrived is not what was declared; ``path`` says where."""

    def __init__(self, problem: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem = problem
        self.path = path

    def under(self, step: str) -> WireError:
        """Return this error as seen from one level further out."""
        return WireError(self.problem, path=step + self.path)


@dataclasses.dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """Two functions, each the inverse of the other; both raise ``WireError``."""

    encode: Callable[[T], Value]
    decode: Callable[[Value], T]


def _unexpected(wanted: str, found: object) -> WireError:
    # reprlib looks only so deep and so far: what was found may be nested or large without end.
    shown = reprlib.repr(found)[:60]
    return WireError(f"expected {wanted}, found {type(found).__name__} {shown}")


def scalar(kind: type[T]) -> Codec[T]:
    """Return the codec of str, int or bool; numpy's scalars are taken, bool is not an int."""

    def check(value: object) -> T:
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _unexpected(kind.__name__, value)
        return value

    return Codec(cast("Callable[[T], Value]", check), check)


def _plain(value: object) -> Value:
    """Return ``value`` if JSON can say it and give back the same; numpy's scalars are unpacked."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return _convert_items(_plain, value)
    if isinstance(value, dict):
        return _convert_values(_plain, value)
    raise _unexpected("a JSON value", value)


def _plain_value(value: object) -> Value:
    try:
        return _plain(value)
    except RecursionError:
        raise WireError("nested too deep") from None


def _convert_items(convert: Callable[[Any], T], values: Iterable[Any]) -> list[T]:
    converted = []
    for index, value in enumerate(values):
        try:
            converted.append(convert(value))
        except WireError as error:
            raise error.under(f"[{index}]") from None
    return converted


def _convert_values(convert: Callable[[Any], T], values: Mapping[Any, Any]) -> dict[str, T]:
    converted = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise _unexpected("a string as key", key)
        try:
            converted[key] = convert(value)
        except WireError as error:
            raise error.under(f"[{key!r}]") from None
    return converted


def _encode_float(value: float) -> Value:
    if isinstance(value, bool) or not isinstance(value, float | int | np.floating):
        raise _unexpected("a float", value)
    return base64.b64encode(struct.pack("<d", value)).decode("ascii")


def _decode_float(value: Value) -> float:
    floats = _decode_floats(value)
    if floats.shape != (1,):
        raise WireError(f"expected one float, found {floats.shape[0]}")
    return float(floats[0])


def _encode_floats(array: NDArray[np.float64]) -> Value:
    if not isinstance(array, np.ndarray) or array.dtype != np.float64 or array.ndim != 1:
        raise _unexpected("a float64 array of one dimension", array)
    return base64.b64encode(array.astype("<f8").tobytes()).decode("ascii")


def _decode_floats(value: Value) -> NDArray[np.float64]:
    if not isinstance(value, str):
        raise _unexpected("base64 of float64", value)
    try:
        raw = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise WireError(f"not base64 ({error}): {value[:60]!r}") from error
    if len(raw) % 8:
        raise WireError(f"{len(raw)} bytes are no whole number of float64")
    return np.frombuffer(raw, dtype="<f8").astype(np.float64)


TEXT: Codec[str] = scalar(str)
INTEGER: Codec[int] = scalar(int)
BOOLEAN: Codec[bool] = scalar(bool)
PLAIN: Codec[Any] = Codec(_plain_value, _plain_value)
# Base64 of the little-endian bytes: JSON has no NaN and no infinity, and every bit must survive.
FLOAT: Codec[float] = Codec(_encode_float, _decode_float)
FLOATS: Codec[NDArray[np.float64]] = Codec(_encode_floats, _decode_floats)


def one_of(*choices: Value) -> Codec[Any]:
    """Return the codec of a literal type."""

    def check(value: Any) -> Any:
        if any(value is choice or value == choice for choice in choices):
            return value
        raise WireError(f"expected one of {list(choices)}, found {value!r}")

    return Codec(check, check)


def optional(codec: Codec[T]) -> Codec[T | None]:
    """Return the codec of ``T | None``."""
    return Codec(
        lambda value: None if value is None else codec.encode(value),
        lambda value: None if value is None else codec.decode(value),
    )


def sequence(item: Codec[T]) -> Codec[tuple[T, ...]]:
    """Return the codec of a tuple; any sequence may be encoded."""

    def decode(value: Value) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise _unexpected("a list", value)
        return tuple(_convert_items(item.decode, value))

    def encode(values: Iterable[T]) -> Value:
        return _convert_items(item.encode, values)

    return Codec(encode, decode)


def mapping_of(item: Codec[T]) -> Codec[Mapping[str, T]]:
    """Return the codec of a mapping from names, which keeps its order."""

    def decode(value: Value) -> Mapping[str, T]:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        return _convert_values(item.decode, value)

    def encode(values: Mapping[str, T]) -> Value:
        if not isinstance(values, Mapping):
            raise _unexpected("a mapping", values)
        return _convert_values(item.encode, values)

    return Codec(encode, decode)


def record(kind: type[T], /, **fields: Codec[Any]) -> Codec[T]:
    """Return the codec of a dataclass: an object with exactly its fields.

    Raises:
        TypeError: if ``fields`` are not the dataclass's fields, so that a field added to it
            cannot be lost on the way.
    """
    declared = {field.name for field in dataclasses.fields(cast("Any", kind))}
    if declared != set(fields):
        raise TypeError(f"{kind.__name__}: no codec for {sorted(declared ^ set(fields))}")

    def encode(value: T) -> Value:
        if not isinstance(value, kind):
            raise _unexpected(kind.__name__, value)
        return {
            name: _convert_field(codec.encode, name, getattr(value, name))
            for name, codec in fields.items()
        }

    def decode(value: Value) -> T:
        if not isinstance(value, dict):
            raise _unexpected(f"{kind.__name__} as an object", value)
        for name in value.keys() - fields.keys():
            raise WireError(f"{kind.__name__} has no field '{name}'{nearest(name, fields)}")
        for name in fields.keys() - value.keys():
            raise WireError(f"{kind.__name__} lacks its field '{name}'")
        return kind(
            **{
                name: _convert_field(codec.decode, name, value[name])
                for name, codec in fields.items()
            }
        )

    return Codec(encode, decode)


def codec_of(kind: Any) -> Codec[Any]:
    """Return the codec of a type as it is annotated: a record of plain values, and what is in it.

    Raises:
        TypeError: it holds something else.
    """
    if _is_value(kind):
        return PLAIN
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        fields = {one.name: codec_of(hints[one.name]) for one in dataclasses.fields(kind)}
        return record(cast("type[Any]", kind), **fields)
    simple: dict[Any, Codec[Any]] = {str: TEXT, int: INTEGER, bool: BOOLEAN, float: FLOAT}
    if kind in simple:
        return simple[kind]
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return one_of(*inside)
    if origin in (Union, UnionType) and len(inside) == 2 and inside[1] is type(None):
        return optional(codec_of(inside[0]))
    if origin is tuple and len(inside) == 2 and inside[1] is Ellipsis:
        return sequence(codec_of(inside[0]))
    if origin is tuple and len(set(inside)) == 1:
        return sequence(codec_of(inside[0]))
    if origin is Mapping and inside[0] is str:
        return mapping_of(codec_of(inside[1]))
    raise TypeError(f"no codec for {kind}")


def _is_value(kind: Any) -> bool:
    """Whether an annotation is ``Value``, which names itself in ways that are not equal."""
    scalars = {type(None), bool, int, float, str}
    return get_origin(kind) in (Union, UnionType) and scalars <= {*get_args(kind)}


def _convert_field(convert: Callable[[Any], Any], name: str, value: object) -> Any:
    try:
        return convert(value)
    except WireError as error:
        raise error.under(f".{name}") from None


def name_root(name: str, codec: Codec[T]) -> Codec[T]:
    """Return ``codec`` whose errors begin their path with ``name``."""

    def named(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(value: object) -> Any:
            try:
                return convert(value)
            except WireError as error:
                raise error.under(name) from None

        return run

    return Codec(named(codec.encode), named(codec.decode))


# Exceptions across the pipe: evalguard's own keep their class, others become EvaluationError.


# By name, and fixed: what a worker says is never looked up among arbitrary classes.
_CLASSES: dict[str, type[EvalguardError]] = {
    kind.__name__: kind
    for kind in (
        errors.EvalguardError,
        errors.UsageError,
        errors.GuardFileError,
        errors.EvaluationError,
        errors.SettingError,
        errors.BuildError,
        errors.FallbackError,
        errors.WorkerError,
        errors.MisalignedRunsError,
        errors.StoreError,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception that a call raised.

    ``kind`` is the name of the nearest evalguard error class; ``expected`` is False for any other
    exception, whose traceback is in the worker's log. ``where`` belongs to GuardFileError,
    ``giving_up`` to FallbackError.
    """

    kind: str
    message: str
    hint: str
    where: str
    giving_up: str
    expected: bool


FAILURE: Codec[Failure] = record(
    Failure, kind=TEXT, message=TEXT, hint=TEXT, where=TEXT, giving_up=TEXT, expected=BOOLEAN
)


def to_failure(error: Exception) -> Failure:
    """Return the record of an exception."""
    if not isinstance(error, EvalguardError):
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        return Failure(
            kind=EvaluationError.__name__,
            message=text,
            hint="",
            where="",
            giving_up="",
            expected=False,
        )
    kind = next(c.__name__ for c in type(error).__mro__ if c.__name__ in _CLASSES)
    return Failure(
        kind=kind,
        message=str(error),
        hint=error.hint,
        where=str(getattr(error, "where", "")),
        giving_up=str(getattr(error, "giving_up", "")),
        expected=True,
    )


def to_exception(failure: Failure, *, model: str, log: str) -> EvalguardError:
    """Return the exception that a record stands for, as the caller in this process sees it."""
    if not failure.expected:
        return EvaluationError(
            f"model '{model}': {failure.message}",
            hint=f"the traceback is in the worker's log, {log}",
        )
    kind = _CLASSES.get(failure.kind)
    if kind is None:
        return EvaluationError(f"{failure.kind}: {failure.message}", hint=failure.hint)
    # The message is complete already; some constructors would put its beginning there again.
    error = kind.__new__(kind)
    EvalguardError.__init__(error, failure.message, hint=failure.hint)
    if isinstance(error, errors.GuardFileError):
        error.where = failure.where
    if isinstance(error, errors.WorkerError):
        error.log = log
        error.cause = ""
    if isinstance(error, errors.FallbackError):
        error.giving_up = failure.giving_up
    return error
