"""Records as JSON values and back, by pydantic from the records' annotations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from evalguard.errors import StoreError
from evalguard.report.contract.forms import KEY_NAMES, PEAKS

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails, SchemaValidator


# What should have been there, by pydantic's name of the error.
_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "string_unicode": "a text",
    "tuple_type": "a list",
    "dict_type": "an object",
    "dataclass_type": "an object",
}
# Fields that have another name in documents; "" for records whose fields stand one level up.
_WRITTEN_AS = {
    **PEAKS,
    "culprits": "guilty",
    "expected": "expected_evaluations",
    "figure": "",
    "version": "evalguard",
    "waiver": "",
}


def damaged_error(where: str, what: str) -> StoreError:
    """Return the error for a document in which something is not as evalguard writes it."""
    return StoreError(
        f"the stored result is damaged: {where} {what}",
        hint="it was changed after evalguard wrote it; compare again for a whole one",
    )


def read_record(kind: Any, value: Any, where: str = "") -> Any:
    """Return the record, or another value of an annotation, that plain JSON values were made of.

    A field that an earlier version did not write has its default, or None where that is allowed;
    keys of a later version are ignored. Types are strict: 1 is not true, but it is a float.

    Args:
        where: the value's place in the document, for errors.

    Raises:
        StoreError: a field is missing, or is something else.
    """
    from pydantic import ValidationError

    try:
        return _validator(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    raise damaged_error(_place_text(where, first["loc"]), _fault_text(first))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Build pydantic's adapter of a record.

    It finds names that core has for annotations only among those of this function, and there the
    ``Value`` that a ``Value`` holds, which would have no end. pydantic takes long to import.
    """
    from typing import Any as Value  # noqa: F401

    from pydantic import TypeAdapter

    from evalguard.bisect.components import Kind  # noqa: F401
    from evalguard.bisect.oracle import Refusal
    from evalguard.bisect.search_result import Part, Status, Suspect  # noqa: F401
    from evalguard.core.gate import GateResult  # noqa: F401
    from evalguard.core.gate_state import GateState, Key  # noqa: F401
    from evalguard.core.limits import LimitVerdict  # noqa: F401

    ProbeOutcome = Literal["scored", Refusal]  # noqa: F841 - a union has an error per part
    return TypeAdapter(kind)


@cache
def _validator(kind: Any) -> SchemaValidator:
    from pydantic_core import SchemaValidator

    return SchemaValidator(_of_documents(_adapter(kind).core_schema))


def _of_documents(part: Any) -> Any:
    """Return pydantic's schema of a record, for documents of any version.

    Plain values are strict; pydantic's own strictness would refuse a list for a tuple, too. A field
    that can be None may be missing, but for a ``Value`` (a union), where None says something.
    """
    if isinstance(part, (list, tuple)):
        return type(part)(_of_documents(one) for one in part)
    if not isinstance(part, dict):
        return part
    found = {key: _of_documents(one) for key, one in part.items()}
    kind, inner = part.get("type"), part.get("schema", {})
    if kind in ("bool", "int", "float", "str"):
        found["strict"] = True
    can_be_none = kind == "dataclass-field" and inner["type"] == "nullable"
    if can_be_none and inner["schema"]["type"] != "union":
        found["schema"] = {"type": "default", "schema": found["schema"], "default": None}
    return found


def _place_text(where: str, place: tuple[int | str, ...]) -> str:
    for key in place:
        written = _WRITTEN_AS.get(str(key), str(key))
        where += f"[{key}]" if isinstance(key, int) else f".{written}" if written else ""
    return where.removeprefix(".") or "the document"


def _fault_text(error: ErrorDetails) -> str:
    found = _excerpt(error["input"])
    if error["type"] == "missing":
        return "is missing"
    if error["type"] == "float_type" and type(error["input"]) is int:
        return "is too large a number"
    if error["type"] == "literal_error":
        return f"is {found}, not one of {error['ctx']['expected']}"
    expected = _EXPECTED.get(error["type"])
    return f"is {found}, not {expected}" if expected else f"is {found}: {error['msg']}"


def read_entries(value: Any, where: str) -> dict[str, Any]:
    """Return a copy of an object.

    Raises:
        StoreError: it is something else.
    """
    if not isinstance(value, Mapping):
        raise damaged_error(where or "the document", f"is {_excerpt(value)}, not an object")
    return dict(value)


def read_list(value: Any, where: str) -> list[Any]:
    """Return the items of a list.

    Raises:
        StoreError: it is something else.
    """
    if not isinstance(value, (list, tuple)):
        raise damaged_error(where, f"is {_excerpt(value)}, not a list")
    return list(value)


def read_key(value: Any, where: str) -> list[str]:
    """Return the key of a metric that an object names.

    Raises:
        StoreError: a part of it is missing, or is something else.
    """
    return [read_text(value, name, where) for name in KEY_NAMES]


def read_text(value: Any, name: str, where: str) -> str:
    """Return the text under a name of an object.

    Raises:
        StoreError: there is none.
    """
    text: str = read_record(str, read_entries(value, where).get(name), f"{where}.{name}")
    return text


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
