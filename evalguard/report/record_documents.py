"""Records as JSON documents and back: forms, faults, and numbers that JSON cannot hold.

The codec of the wire (``core/codec.py``) knows exact fields and bits; a document has forms of its
own, may be of an earlier or later version, and may have been changed by hand.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from evalguard import tools
from evalguard.core.verdict import SIGMA
from evalguard.errors import StoreError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a record is written where that is not field by field.

    Attributes:
        names: field to key.
        leave_out: fields that are not written, or are by other means.
        inline: fields whose own fields stand in their place; of a metric's key its parts.
        add: key to the property that is written under it, after the fields.
        given: fields that a tool's record stands in, to what tools.py calls it; of a tool that is
            missing they are kept as they are.
        in_any_unit: drifts are written in the record's unit, or that of the record that it is in,
            and once more under the names of sigma alone, where they are null in any other unit.
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    inline: tuple[str, ...] = ()
    add: Mapping[str, str] = dataclasses.field(default_factory=dict)
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    in_any_unit: bool = False


def _added(*names: str, **named: str) -> dict[str, str]:
    return {**{name: name for name in names}, **named}


# Fields of Resources that are bytes, as their names in documents say.
PEAKS = {
    name: f"{name}_bytes" for name in ("peak_memory", "worker_peak_memory", "device_peak_memory")
}
_VERSION = {"version": "evalguard"}
# Records by the names of their types, so that a document needs no other's records.
FORMS: Mapping[str, Form] = {
    "CompareReport": Form(names=_VERSION, given={"bisect": "BisectReport"}),
    "CheckpointSize": Form(add=_added("bits_per_weight")),
    "GateResult": Form(
        leave_out=("gated", "holm_p_values", "regressed", "undecided", "failed"),
        add={"gated": "judged"},
    ),
    "Finding": Form(add=_added("subject")),
    "GatedMetric": Form(inline=("key",)),
    "AcceptedDrift": Form(inline=("waiver", "key")),
    "Resources": Form(names=PEAKS, add=_added("tokens", "tokens_per_second")),
    "DistributionComparison": Form(add=_added("moved")),
    "Percentile": Form(inline=("figure",)),
    "DriftPart": Form(add=_added("share")),
    "BisectReport": Form(
        names={"expected": "expected_evaluations"},
        add=_added(
            "status", "culprits", "evaluations", "probes", "unit", "drift_sigma", "outside_sigma",
            "unexplained_sigma",
        ),
        in_any_unit=True,
    ),
    "MetricSearch": Form(
        names={"culprits": "guilty"}, add={"culprits": "culprit_names"}, in_any_unit=True
    ),
    "ModulePrice": Form(add=_added("per_megabyte")),
    "Suspect": Form(names={"name": "setting"}),
    **dict.fromkeys(("GuiltySetting", "Part", "Probe", "Recommended"), Form(in_any_unit=True)),
    "NightRun": Form(names={"number": "run"}),
    "NightMetric": Form(
        add={
            "sigma_stderr": "stderr", "unit": "unit", "drift_in_unit": "drift",
            "drift_in_unit_stderr": "drift_stderr",
        },
    ),
    "HistoryRun": Form(inline=("run",)),
    "MetricFlips": Form(inline=("key",)),
    "FlipReport": Form(leave_out=("nights",)),
    "BrokenDocuments": Form(add=_added("total")),
    "FloorReport": Form(names=_VERSION, leave_out=("model_key",)),
    "NightReport": Form(names=_VERSION, add=_added("counts")),
    **dict.fromkeys(("NightStep", "BrokenTonight"), Form(inline=("key",))),
    "PlanReport": Form(names=_VERSION),
    "MetricPlan": Form(
        inline=("pilot",), leave_out=("alpha", "power", "given"), add=_added("margin_text")
    ),
    "Pilot": Form(
        names={"n": "pilot_n", "problem": "reason"},
        leave_out=(
            "confidence", "base_stderr", "base_scatter", "ratio", "ratio_range", "is_share",
            "in_points", "answers", "per_unit",
        ),
        add=_added("scatter_ratio", "scatter_ratio_range"),
    ),
    "RepeatPlan": Form(inline=("scatter",)),
    "AnswerScatter": Form(leave_out=("total", "total_range", "within_range")),
    "TaskCost": Form(
        leave_out=("seconds", "tokens"),
        add=_added(
            "documents_per_second", "tokens_per_second", "expected_seconds",
            "expected_seconds_range", "expected_tokens", "expected_tokens_range",
        ),
    ),
    "TraceReport": Form(names=_VERSION, inline=("trace",), leave_out=("notes",)),
    "Trace": Form(leave_out=("documents",)),
    "TensorsReport": Form(
        names={**_VERSION, "deltas": "tensors"},
        add=_added("passed", "missing", "states", "exit_code"),
    ),
    "TensorDelta": Form(add=_added("mismatched_share", "passed")),
    "InvariantResult": Form(add=_added("elements", "violations", "holds", "share")),
}  # fmt: skip
_FIELD_BY_FIELD = Form()
# Drifts by the names they have in any unit; those of sigma alone have been there for longer.
SIGMA_NAMES = {
    "drift": "drift_sigma",
    "outside": "outside_sigma",
    "unexplained": "unexplained_sigma",
    "alone": "sigma_alone",
    "alone_error": "alone_error_sigma",
    "in_context": "sigma_in_context",
    "shapley": "shapley_sigma",
    "amount": "sigma",
    "error": "error_sigma",
}
KEY_NAMES = ("task", "filter", "metric")


def form_of(kind: type) -> Form:
    """Return how records of a type are written."""
    return FORMS.get(kind.__name__, _FIELD_BY_FIELD)


def key_fields(key: Any) -> dict[str, str]:
    """Return the key of a metric as an object."""
    return dict(zip(KEY_NAMES, key, strict=True))


def write_record(record: Any, unit: str = SIGMA) -> dict[str, Any]:
    """Return a record, and the records in it, as plain values by the keys of documents.

    Args:
        unit: of the record that it is in.
    """
    kind: Any = type(record)
    form = form_of(kind)
    unit = getattr(record, "unit", unit)
    fields: dict[str, Any] = {}
    for name, key, keyed in _written(kind):
        value = getattr(record, name)
        if type(value) not in _SIMPLE:
            value = _write(value, unit, keyed=keyed)
        if name in form.inline:
            fields |= value
        else:
            fields[key] = value
    if not form.in_any_unit:
        return fields
    drifts = {name: fields[own] for name, own in SIGMA_NAMES.items() if own in fields}
    of_sigma = {SIGMA_NAMES[n]: value if unit == SIGMA else None for n, value in drifts.items()}
    return {**fields, "unit": unit, **drifts, **of_sigma}


_SIMPLE = frozenset({bool, int, float, str, type(None)})


@cache
def _written(kind: Any) -> list[tuple[str, str, bool]]:
    """As ``written_fields``, and whether keys of metrics stand there."""
    hints = annotations_of(kind)
    return [(name, key, _names_metrics(hints[name])) for name, key in written_fields(kind)]


def written_fields(kind: type) -> list[tuple[str, str]]:
    """Return the fields and properties of a record that are written, each with its key."""
    form = form_of(kind)
    own = [field.name for field in dataclasses.fields(kind) if field.name not in form.leave_out]
    return [
        *((name, form.names.get(name, name)) for name in own),
        *((name, key) for key, name in form.add.items()),
    ]


def _write(value: Any, unit: str, *, keyed: bool) -> Any:
    if dataclasses.is_dataclass(value):
        return write_record(value, unit)
    if isinstance(value, Mapping):
        return {key: _write(item, unit, keyed=keyed) for key, item in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    if keyed and len(value) == len(KEY_NAMES) and all(isinstance(part, str) for part in value):
        return key_fields(value)
    if keyed and len(value) == 2 and isinstance(value[1], str):
        return {**key_fields(value[0]), "reason": value[1]}
    return [_write(item, unit, keyed=keyed) for item in value]


def _names_metrics(annotation: Any) -> bool:
    return annotation == tuple[str, str, str] or any(map(_names_metrics, get_args(annotation)))


@cache
def annotations_of(kind: Any) -> dict[str, Any]:
    """Return the types of a record's fields and of the properties that are written with them.

    ``Value`` is any: what it holds may hold it again.
    """
    # What core names for its annotations alone, so that it imports nothing for them.
    from evalguard.core.gate import GateResult
    from evalguard.core.gate_state import GateState, Key
    from evalguard.core.limits import LimitVerdict
    from evalguard.core.question import Refusal

    names = {
        "Refusal": Refusal, "GateResult": GateResult, "GateState": GateState, "Key": Key,
        "LimitVerdict": LimitVerdict, **vars(sys.modules[kind.__module__]), "Value": Any,
    }  # fmt: skip
    hints = get_type_hints(kind, localns=names)
    form = form_of(kind)
    for name, record in form.given.items():
        hints[name] = tools.fetch(record) | None if tools.has(record) else Any
    for name in form.add.values():
        hints[name] = get_type_hints(getattr(kind, name).fget, localns=names)["return"]
    return hints


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
    named = [repr(choice) for choice in choices]
    wanted = " or ".join(filter(None, [", ".join(named[:-1]), named[-1]]))

    def read(value: Any, where: str) -> Any:
        if any(type(value) is type(choice) and value == choice for choice in choices):
            return value
        raise damaged_error(where, f"is {_excerpt(value)}, not one of {wanted}")

    return read


def _union_reader(inside: tuple[Any, ...]) -> Reader:
    members = [member for member in inside if member is not NoneType]
    if Any in members:
        return _reader_of(Any)
    if all(get_origin(member) is Literal for member in members):
        inner = _choice_reader(tuple(choice for member in members for choice in get_args(member)))
    elif {int, float, str} <= {*members}:  # plain values, which are what they are
        return _plain_reader(
            next((member for member in members if get_origin(member) is tuple), None)
        )
    else:
        (only,) = members
        inner = _reader_of(only)
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
            item(entry, f"{where}[{number}]")
            for number, entry in enumerate(read_list(value, where))
        )
    items = [_reader_of(kind) for kind in inside]

    def read(value: Any, where: str) -> tuple[Any, ...]:
        entries = read_list(value, where)
        if len(entries) != len(items):
            raise damaged_error(where, f"is {_excerpt(value)}, not a list of {len(items)}")
        pairs = enumerate(zip(items, entries, strict=True))
        return tuple(item(entry, f"{where}[{number}]") for number, (item, entry) in pairs)

    return read


def _mapping_reader(key: Reader, item: Reader) -> Reader:
    return lambda value, where: {
        key(name, where): item(entry, f"{where}.{name}")
        for name, entry in read_entries(value, where).items()
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
        entries, arguments = read_entries(value, where), {}
        for field in fields:
            if field.inline:
                arguments[field.name] = field.read(entries.get(field.name, value), where)
                continue
            key = next((name for name in field.keys if name in entries), None)
            if key is not None:
                arguments[field.name] = field.read(entries[key], f"{where}.{key}".removeprefix("."))
            elif field.can_be_none:
                arguments[field.name] = None
            elif field.required:
                raise damaged_error(f"{where}.{field.keys[-1]}".removeprefix("."), "is missing")
        try:
            return kind(**arguments)
        except ValueError as error:
            raise damaged_error(where, f"is {_excerpt(value)}: {error}") from error

    return read


def _fields_of(kind: Any) -> list[_Field]:
    form, hints = form_of(kind), annotations_of(kind)
    fields = []
    for field in dataclasses.fields(kind):
        key = form.names.get(field.name, field.name)
        drift = [_ANY_UNIT[field.name]] if form.in_any_unit and field.name in _ANY_UNIT else []
        inside = get_args(hints[field.name])
        default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        fields.append(
            _Field(
                name=field.name,
                keys=(*drift, key),
                read=_reader_of(hints[field.name]),
                inline=field.name in form.inline,
                required=not default,
                can_be_none=not default and NoneType in inside and Any not in inside,
            )
        )
    return fields


NON_FINITE = "non_finite"
NonFinite = Literal["nan", "+inf", "-inf"]
_SAID: dict[NonFinite, str] = {
    "nan": "is not a number",
    "+inf": "is +infinite",
    "-inf": "is -infinite",
}


def replace_non_finite(value: Any, name: str, lost: dict[str, NonFinite]) -> Any:
    """Replace what JSON cannot hold by null, and add to ``lost`` what that was, by its place."""
    if isinstance(value, float) and not math.isfinite(value):
        lost[name] = "nan" if math.isnan(value) else "+inf" if value > 0 else "-inf"
        return None
    if isinstance(value, Mapping):
        return {
            str(key): replace_non_finite(item, f"{name}.{key}", lost) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item, f"{name}[{i}]", lost) for i, item in enumerate(value)]
    return value


def null_texts(lost: Mapping[str, NonFinite], absent: Iterable[str] = ()) -> list[str]:
    """Return the caveats or notes for people: what was no number, and what does not exist."""
    texts = [f"{name} does not exist" for name in absent]
    texts += [f"{name} {_SAID[kind]}" for name, kind in lost.items()]
    return [f"{text}, so it is null here" for text in texts]


def nulls_told(fields: Mapping[str, Any], texts: str, absent: Iterable[str] = ()) -> dict[str, Any]:
    """Return fields with null for what JSON cannot hold, told under ``non_finite`` and in texts.

    Args:
        texts: name of the field with the texts for people.
        absent: names of what is null because there is no such number, for the texts alone.
    """
    lost: dict[str, NonFinite] = {}
    values = {key: replace_non_finite(value, key, lost) for key, value in fields.items()}
    return {**values, texts: [*values[texts], *null_texts(lost, absent)], NON_FINITE: lost}


def restore_non_finite(
    fields: Mapping[str, Any],
    texts: str,
    lost: Mapping[str, NonFinite],
    where: str = "",
    *,
    absent: Iterable[str] = (),
) -> dict[str, Any]:
    """Return fields with the numbers that ``nulls_told`` replaced, and without its texts.

    Args:
        lost: what the numbers were, by their places in the document.
        where: the fields' own place in there.
    """
    restored: dict[str, NonFinite] = {}

    def restore(value: Any, name: str) -> Any:
        if value is None and (kind := lost.get(where + name)):
            restored[name] = kind
            return float(kind)
        if isinstance(value, Mapping):
            return {key: restore(item, f"{name}.{key}") for key, item in value.items()}
        if isinstance(value, list):
            return [restore(item, f"{name}[{i}]") for i, item in enumerate(value)]
        return value

    whole = {name: restore(value, name) for name, value in fields.items()}
    added = null_texts(restored, [name for name in absent if whole.get(name) is None])
    remaining = list(whole[texts])
    while remaining and remaining[-1] in added:
        remaining.pop()
    return {**whole, texts: remaining}


def read_non_finite(value: Any) -> dict[str, NonFinite]:
    """Return what a document says under ``non_finite``."""
    kinds: dict[str, NonFinite] = read_record(dict[str, NonFinite], value, NON_FINITE)
    return kinds


# Documents of 0.1.0 have the texts alone: the one place where they are read.
_OF_0_1 = re.compile(
    rf"(?P<name>.*) (?P<said>{'|'.join(map(re.escape, _SAID.values()))}), so it is null here",
    re.DOTALL,
)


def non_finite_of_texts(texts: Iterable[str], where: str = "") -> dict[str, NonFinite]:
    """Return what the caveats or notes of a document without ``non_finite`` say."""
    kinds: dict[str, NonFinite] = {phrase: kind for kind, phrase in _SAID.items()}
    matches = map(_OF_0_1.fullmatch, texts)
    return {where + match["name"]: kinds[match["said"]] for match in matches if match}
