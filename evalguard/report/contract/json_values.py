"""Plain JSON values as what a dataclass's annotations ask for, and the numbers that JSON cannot
hold put back.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import types
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from evalguard.bisect.choice import Kind
from evalguard.bisect.oracle import Outcome, Refusal
from evalguard.bisect.result import Part, Status, Suspect
from evalguard.core.gate import GateResult
from evalguard.core.limits import GateState, Key, LimitVerdict
from evalguard.errors import StoreError

# What modules import for their annotations only.
_ANNOTATION_NAMES: dict[str, Any] = {
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
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def damaged_error(where: str, what: str) -> StoreError:
    """Return the error for a document in which something is not as evalguard writes it."""
    return StoreError(
        f"the stored result is damaged: {where} {what}",
        hint="it was changed after evalguard wrote it; compare again for a whole one",
    )


def read_value(kind: Any, value: Any, where: str) -> Any:
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
        return read_dataclass(kind, value, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _read_union(get_args(kind), value, where)
    if origin is Literal:
        if value in get_args(kind):
            return value
        raise damaged_error(where, f"is {_excerpt(value)}, not one of {', '.join(get_args(kind))}")
    if origin is tuple:
        return _read_tuple(get_args(kind), value, where)
    if origin is not None:
        return {
            key: read_value(get_args(kind)[1], item, where)
            for key, item in read_entries(value, where)
        }
    return _read_simple(kind, value, where)


def read_dataclass(kind: Any, value: Any, where: str, **known: Any) -> Any:
    """Return a dataclass from an object that names its fields.

    A field that an earlier version did not write has its default, or None where that is allowed.

    Args:
        known: fields that the document has under another name or in another form.

    Raises:
        StoreError: a field is missing, or is something else.
    """
    fields = dict(read_entries(value, where))
    given = dict(known)
    for field in dataclasses.fields(kind):
        if field.name in given:
            continue
        hint = _type_hints(kind)[field.name]
        path = f"{where}.{field.name}" if where else field.name
        if field.name in fields:
            given[field.name] = read_value(hint, fields[field.name], path)
        elif type(None) in get_args(hint):
            given[field.name] = None
        elif _is_required(field):
            raise damaged_error(path, "is missing")
    return kind(**given)


def read_entries(value: Any, where: str) -> list[tuple[str, Any]]:
    """Return the entries of an object.

    Raises:
        StoreError: it is something else.
    """
    if not isinstance(value, Mapping):
        raise damaged_error(where or "the document", f"is {_excerpt(value)}, not an object")
    return list(value.items())


def read_list(value: Any, where: str) -> list[Any]:
    """Return the items of a list.

    Raises:
        StoreError: it is something else.
    """
    if not isinstance(value, (list, tuple)):
        raise damaged_error(where, f"is {_excerpt(value)}, not a list")
    return list(value)


@cache
def _type_hints(kind: Any) -> dict[str, Any]:
    module = vars(sys.modules[kind.__module__])
    return get_type_hints(kind, {**_ANNOTATION_NAMES, **module, "Value": Any})


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _read_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if type(None) in kinds and value is None:
        return None
    options = [kind for kind in kinds if kind is not type(None)]
    for kind in options[:-1]:
        try:
            return read_value(kind, value, where)
        except StoreError:
            continue
    return read_value(options[-1], value, where)


def _read_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    found = read_list(value, where)
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(found)
    if len(kinds) != len(found):
        raise damaged_error(where, f"has {len(found)} items, not {len(kinds)}")
    pairs = zip(kinds, found, strict=True)
    return tuple(read_value(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(pairs))


def _read_simple(kind: type, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return _read_float(value, where)
    if type(value) is not kind:
        raise damaged_error(where, f"is {_excerpt(value)}, not {_TYPE_NAMES[kind]}")
    return value


def _read_float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise damaged_error(where, "is too large a number") from error


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


# Numbers that JSON cannot hold, put back from the caveats that say what each null was.
#
# The inverse of ``evalguard.report.contract.compare.replace_non_finite``.


_NULL_CAVEAT = re.compile(
    r"(?P<name>.*) (?P<what>is not a number|is \+infinite|is -infinite|does not exist)"
    r", so it is null here",
    re.DOTALL,
)
_VALUE_OF_NULL: dict[str, float | None] = {
    "is not a number": math.nan,
    "is +infinite": math.inf,
    "is -infinite": -math.inf,
    "does not exist": None,
}


def restore_non_finite(
    values: Mapping[str, Any], texts: Iterable[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return ``values`` with the numbers that ``texts`` tell of, and the other texts.

    Args:
        values: plain JSON values, by the names that the texts use.
        texts: caveats or notes; those about nulls stand last, as they were written.
    """
    texts = list(texts)
    kept = len(texts)
    while kept and _NULL_CAVEAT.fullmatch(texts[kept - 1]):
        kept -= 1
    told: dict[str, list[str]] = {}
    for text in texts[kept:]:
        found = _NULL_CAVEAT.fullmatch(text)
        assert found is not None
        told.setdefault(found["name"], []).append(text)
    whole = {name: _restore_value(value, name, told) for name, value in values.items()}
    unused = {text for some in told.values() for text in some}
    return whole, (*texts[:kept], *(text for text in texts[kept:] if text in unused))


def _restore_value(value: Any, name: str, told: dict[str, list[str]]) -> Any:
    if value is None and told.get(name):
        found = _NULL_CAVEAT.fullmatch(told[name].pop(0))
        return None if found is None else _VALUE_OF_NULL[found["what"]]
    if isinstance(value, Mapping):
        return {key: _restore_value(item, f"{name}.{key}", told) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore_value(item, f"{name}[{i}]", told) for i, item in enumerate(value)]
    return value
