"""Records out of documents, from their annotations: what ``forms.write_record`` wrote, read back.

The codec of the wire (``core/plain.py``) knows exact fields and bits; a document has forms of its
own, may be of an earlier or later version, and may have been changed by hand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from evalguard.errors import StoreError
from evalguard.report.contract.forms import KEY_NAMES, SIGMA_NAMES, annotations_of, form_of

# Of a value and its place in the document: what it stands for, or a StoreError.
Reader = Callable[[Any, str], Any]

_ANY_UNIT = {own: name for name, own in SIGMA_NAMES.items()}


def damaged_error(where: str, what: str) -> StoreError:
    """Return the error for a document in which something is not as evalguard writes it."""
    return StoreError(
        f"the stored result is damaged: {where or 'the document'} {what}",
        hint="it was changed after evalguard wrote it; compare again for a whole one",
    )


def read_record(kind: Any, value: Any, where: str = "") -> Any:
    """Return the record, or another value of an annotation, that plain JSON values were made of.

    A field that an earlier version did not write has its default, or None where that is allowed;
    keys of a later version are ignored. Types are strict: 1 is not true, but it is a float. Fields
    that documents leave out are read where they are given under their names.

    Args:
        where: the value's place in the document, for errors.

    Raises:
        StoreError: a field is missing, or is something else.
    """
    return _reader_of(kind)(value, where)


def read_entries(value: Any, where: str) -> dict[str, Any]:
    """Return a copy of an object.

    Raises:
        StoreError: it is something else.
    """
    if not isinstance(value, Mapping):
        raise damaged_error(where, f"is {_excerpt(value)}, not an object")
    return dict(value)


def read_list(value: Any, where: str) -> list[Any]:
    """Return the items of a list.

    Raises:
        StoreError: it is something else.
    """
    if not isinstance(value, (list, tuple)):
        raise damaged_error(where, f"is {_excerpt(value)}, not a list")
    return list(value)


def read_key(value: Any, where: str) -> tuple[str, ...]:
    """Return the key of a metric that an object names.

    Raises:
        StoreError: a part of it is missing, or is something else.
    """
    fields = read_entries(value, where)
    return tuple(read_record(str, fields.get(name), f"{where}.{name}") for name in KEY_NAMES)


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


@cache
def _reader_of(kind: Any) -> Reader:
    if kind is Any:
        return lambda value, _: value
    if dataclasses.is_dataclass(kind):
        return _record_reader(kind)
    if kind in _SCALARS:
        return _scalar_reader(kind, _SCALARS[kind])
    if kind == tuple[str, str, str]:
        return read_key
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _choice_reader(inside)
    if origin in (Union, UnionType):
        return _union_reader(inside)
    if inside == (tuple[str, str, str], str):  # a metric with a reason
        return lambda value, where: (
            read_key(value, where),
            read_record(str, read_entries(value, where).get("reason"), f"{where}.reason"),
        )
    if origin is tuple:
        return _tuple_reader(inside)
    if inside and issubclass(origin, Mapping):
        return _mapping_reader(*map(_reader_of, inside))
    raise TypeError(f"documents hold no {kind}")


_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _scalar_reader(kind: type, wanted: str) -> Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) is kind:
            return value
        if kind is not float or type(value) is not int:
            raise damaged_error(where, f"is {_excerpt(value)}, not {wanted}")
        try:
            return float(value)
        except OverflowError:
            raise damaged_error(where, "is too large a number") from None

    return read


def _choice_reader(choices: tuple[Any, ...]) -> Reader:
    named = [repr(one) for one in choices]
    wanted = " or ".join(filter(None, [", ".join(named[:-1]), named[-1]]))

    def read(value: Any, where: str) -> Any:
        if any(type(value) is type(one) and value == one for one in choices):
            return value
        raise damaged_error(where, f"is {_excerpt(value)}, not one of {wanted}")

    return read


def _union_reader(inside: tuple[Any, ...]) -> Reader:
    others = [one for one in inside if one is not NoneType]
    if Any in others:
        return _reader_of(Any)
    if all(get_origin(one) is Literal for one in others):
        inner = _choice_reader(tuple(choice for one in others for choice in get_args(one)))
    elif {int, float, str} <= {*others}:  # plain values, which are what they are
        return _plain_reader(next((one for one in others if get_origin(one) is tuple), None))
    else:
        (other,) = others
        inner = _reader_of(other)
    if NoneType not in inside:
        return inner
    return lambda value, where: None if value is None else inner(value, where)


def _plain_reader(of_lists: Any) -> Reader:
    """Values as they are; of a union with a tuple, lists as that tuple."""
    items = _reader_of(Any if of_lists is None else of_lists)
    return lambda value, where: items(value, where) if isinstance(value, list) else value


def _tuple_reader(inside: tuple[Any, ...]) -> Reader:
    if inside[-1:] == (Ellipsis,):
        item = _reader_of(inside[0])
        return lambda value, where: tuple(
            item(one, f"{where}[{number}]") for number, one in enumerate(read_list(value, where))
        )
    items = [_reader_of(one) for one in inside]

    def read(value: Any, where: str) -> tuple[Any, ...]:
        found = read_list(value, where)
        if len(found) != len(items):
            raise damaged_error(where, f"is {_excerpt(value)}, not a list of {len(items)}")
        pairs = enumerate(zip(items, found, strict=True))
        return tuple(item(one, f"{where}[{number}]") for number, (item, one) in pairs)

    return read


def _mapping_reader(key: Reader, item: Reader) -> Reader:
    return lambda value, where: {
        key(name, where): item(one, f"{where}.{name}")
        for name, one in read_entries(value, where).items()
    }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """How a field is read: of its first key that is there; ``inline``: of the whole object."""

    name: str
    keys: tuple[str, ...]
    read: Reader
    inline: bool
    required: bool
    can_be_none: bool


def _record_reader(kind: Any) -> Reader:
    fields: list[_Field] = []

    def read(value: Any, where: str) -> Any:
        if not fields:  # a record may hold its like
            fields.extend(_fields_of(kind))
        entries, found = read_entries(value, where), {}
        for field in fields:
            if field.inline:
                found[field.name] = field.read(entries.get(field.name, value), where)
                continue
            key = next((one for one in field.keys if one in entries), None)
            if key is not None:
                found[field.name] = field.read(entries[key], f"{where}.{key}".removeprefix("."))
            elif field.can_be_none:
                found[field.name] = None
            elif field.required:
                raise damaged_error(f"{where}.{field.keys[-1]}".removeprefix("."), "is missing")
        try:
            return kind(**found)
        except ValueError as error:
            raise damaged_error(where, f"is {_excerpt(value)}: {error}") from error

    return read


def _fields_of(kind: Any) -> list[_Field]:
    form, hints = form_of(kind), annotations_of(kind)
    found = []
    for one in dataclasses.fields(kind):
        key = form.names.get(one.name, one.name)
        drift = [_ANY_UNIT[one.name]] if form.in_any_unit and one.name in _ANY_UNIT else []
        inside = get_args(hints[one.name])
        default = (one.default, one.default_factory) != (dataclasses.MISSING,) * 2
        found.append(
            _Field(
                name=one.name,
                keys=(*drift, key),
                read=_reader_of(hints[one.name]),
                inline=one.name in form.inline,
                required=not default,
                can_be_none=not default and NoneType in inside and Any not in inside,
            )
        )
    return found
