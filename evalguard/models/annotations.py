"""Whether a value of a guard file is one that a library's own annotation allows."""

from __future__ import annotations

import inspect
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from evalguard.errors import UsageError, nearest

if TYPE_CHECKING:
    from evalguard.core.settings import Value

ANYTHING = inspect.Parameter.empty
_UNIONS = (typing.Union, types.UnionType)
_WORDS = {bool: "true or false", int: "a number", float: "a number", str: "a text"}


def read_annotation(annotation: Any, names: Mapping[str, Any]) -> Any:
    """Return the type of an annotation that may be text; ``ANYTHING`` where it cannot be read.

    Args:
        names: the globals of the module that it stands in.
    """
    if not isinstance(annotation, str):
        return annotation
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=dict(names))["it"]
    except Exception:  # noqa: BLE001 - it names what is imported for type checkers alone
        return ANYTHING


def check_annotated(name: str, value: Value, annotation: Any) -> None:
    """Refuse a value of a model_arg, or of a key in one, that its annotation does not allow.

    A number stands for any other, because libraries write ``int`` where they take 2.5 seconds.
    What no guard file can write, an object of the library's, may be meant by a mapping.

    Args:
        name: with the argument that it is in, dotted.
        annotation: of ``read_annotation``.

    Raises:
        UsageError: naming what may stand there.
    """
    allowed = list(_alternatives(annotation))
    if value is None or any(_fits(value, kind) for kind in allowed):
        return
    words = [str(literal) for kind in allowed for literal in _literals(kind) if literal is not None]
    wanted = dict.fromkeys(_WORDS.get(kind, "") or _kind_word(kind) for kind in allowed)
    if words:
        wanted[f"one of {', '.join(words)}"] = None
    described = " or ".join(word for word in wanted if word)
    raise UsageError(
        f"model_args.{name}: {value!r} is not {described}{nearest(str(value), words)}",
        target=f"model_args.{name.partition('.')[0]}",
    )


def _alternatives(annotation: Any) -> Iterator[Any]:
    """The types of a union, each of which may be one; an alias and what is annotated, unpacked."""
    annotation = getattr(annotation, "__value__", annotation)
    origin = typing.get_origin(annotation)
    if origin in _UNIONS:
        for member in typing.get_args(annotation):
            yield from _alternatives(member)
    elif origin is typing.Annotated:
        yield from _alternatives(typing.get_args(annotation)[0])
    else:
        yield annotation


def _literals(kind: Any) -> tuple[Any, ...]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(member.value for member in kind)
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def _fits(value: Value, kind: Any) -> bool:
    if _literals(kind):
        return any(type(value) is type(literal) and value == literal for literal in _literals(kind))
    kind = typing.get_origin(kind) or kind
    if not isinstance(kind, type) or kind in (object, ANYTHING):
        return True
    if kind in (int, float):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and math.isfinite(typing.cast("float", value))
    if kind in (bool, str):
        return isinstance(value, kind)
    if issubclass(kind, os.PathLike):
        return isinstance(value, str)
    if _kind_word(kind) == "a list":
        return isinstance(value, list)
    return isinstance(value, dict) and kind is not type(None)


def _kind_word(kind: Any) -> str:
    """What is written for a value of a type that is no plain one; "" for None and objects."""
    kind = typing.get_origin(kind) or kind
    if not isinstance(kind, type) or kind is type(None) or _literals(kind):
        return ""
    if issubclass(kind, os.PathLike):
        return "a path"
    # of typing's and abc's names too: Mapping, Sequence, Collection
    if issubclass(kind, Mapping):
        return "a mapping"
    return "a list" if issubclass(kind, (list, tuple, set, frozenset, typing.Sequence)) else ""
