"""Plain JSON values as what a dataclass's annotations ask for, or an error that names the key."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from evalguard.bisect.components import Kind
from evalguard.bisect.oracle import Refusal
from evalguard.bisect.probe import Outcome
from evalguard.bisect.result import Part, Status, Suspect
from evalguard.errors import StoreError
from evalguard.gate_reason import GateState, Key
from evalguard.gate_result import GateResult
from evalguard.limits import LimitVerdict

# What modules import for their annotations only.
_NAMES: dict[str, Any] = {
    "GateResult": GateResult,
    "GateState": GateState,
    "Key": Key,
    "LimitVerdict": LimitVerdict,
    "Kind": Kind,
    "Part": Part,
    "ProbeOutcome": Outcome,
    "Refusal": Refusal,
    "Status": Status,
    "Suspect": Suspect,
}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def damaged(where: str, what: str) -> StoreError:
    """Return the error for a document in which something is not as evalguard writes it."""
    return StoreError(
        f"the stored result is damaged: {where} {what}",
        hint="it was changed after evalguard wrote it; compare again for a whole one",
    )


def read(kind: Any, value: Any, where: str) -> Any:
    """Return ``value`` as an annotation asks for it.

    Args:
        kind: the annotation: a class, a Literal, a union with None, a tuple, a mapping or Any.
        where: the value's place in the document, for errors.

    Raises:
        StoreError: it is something else.
    """
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return read_fields(kind, value, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), value, where)
    if origin is Literal:
        if value in get_args(kind):
            return value
        raise damaged(where, f"is {_excerpt(value)}, not one of {', '.join(get_args(kind))}")
    if origin is tuple:
        return _tuple(get_args(kind), value, where)
    if origin is not None:
        return {key: read(get_args(kind)[1], item, where) for key, item in mapping(value, where)}
    return _simple(kind, value, where)


def read_fields(kind: Any, value: Any, where: str, **known: Any) -> Any:
    """Return a dataclass from an object that names its fields.

    A field that an earlier version did not write has its default, or None where that is allowed.

    Args:
        known: fields that the document has under another name or in another form.

    Raises:
        StoreError: a field is missing, or is something else.
    """
    fields = dict(mapping(value, where))
    given = dict(known)
    for field in dataclasses.fields(kind):
        if field.name in given:
            continue
        hint = _hints(kind)[field.name]
        path = f"{where}.{field.name}" if where else field.name
        if field.name in fields:
            given[field.name] = read(hint, fields[field.name], path)
        elif type(None) in get_args(hint):
            given[field.name] = None
        elif _required(field):
            raise damaged(path, "is missing")
    return kind(**given)


def mapping(value: Any, where: str) -> list[tuple[str, Any]]:
    """Return the entries of an object.

    Raises:
        StoreError: it is something else.
    """
    if not isinstance(value, Mapping):
        raise damaged(where or "the document", f"is {_excerpt(value)}, not an object")
    return list(value.items())


def items(value: Any, where: str) -> list[Any]:
    """Return the items of a list.

    Raises:
        StoreError: it is something else.
    """
    if not isinstance(value, (list, tuple)):
        raise damaged(where, f"is {_excerpt(value)}, not a list")
    return list(value)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    module = vars(sys.modules[kind.__module__])
    return get_type_hints(kind, {**_NAMES, **module, "Value": Any})


def _required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if type(None) in kinds and value is None:
        return None
    options = [kind for kind in kinds if kind is not type(None)]
    for kind in options[:-1]:
        try:
            return read(kind, value, where)
        except StoreError:
            continue
    return read(options[-1], value, where)


def _tuple(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    found = items(value, where)
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(found)
    if len(kinds) != len(found):
        raise damaged(where, f"has {len(found)} items, not {len(kinds)}")
    pairs = zip(kinds, found, strict=True)
    return tuple(read(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(pairs))


def _simple(kind: type, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return _float(value, where)
    if type(value) is not kind:
        raise damaged(where, f"is {_excerpt(value)}, not {_WORDS[kind]}")
    return value


def _float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise damaged(where, "is too large a number") from error


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
