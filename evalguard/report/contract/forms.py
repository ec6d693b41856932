"""How records are written in documents: field by field, but for what stands in ``FORMS``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args, get_type_hints

from evalguard.core.reports.bisect_report import SIGMA


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a record is written where that is not field by field.

    Attributes:
        names: field to key.
        leave_out: fields that are not written, or are by other means.
        inline: fields whose own fields stand in their place; of a metric's key its parts.
        add: key to the property that is written under it, after the fields.
        in_any_unit: drifts are written in the record's unit, or that of the record that it is in,
            and once more under the names of sigma alone, where they are null in any other unit.
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    inline: tuple[str, ...] = ()
    add: Mapping[str, str] = dataclasses.field(default_factory=dict)
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
    "CompareReport": Form(names=_VERSION),
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
    **dict.fromkeys(("GuiltySetting", "Measured", "Part", "Recommended"), Form(in_any_unit=True)),
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
            "in_points", "answers",
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
    if keyed and len(value) == len(KEY_NAMES) and all(isinstance(one, str) for one in value):
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
    from evalguard.bisect.components import Kind
    from evalguard.bisect.oracle import Refusal
    from evalguard.bisect.search_probe import Outcome
    from evalguard.bisect.search_result import Part, Status, Suspect
    from evalguard.core.gate import GateResult
    from evalguard.core.gate_state import GateState, Key
    from evalguard.core.limits import LimitVerdict

    names = {
        "Kind": Kind, "ProbeOutcome": Outcome, "Refusal": Refusal, "Part": Part, "Status": Status,
        "Suspect": Suspect, "GateResult": GateResult, "GateState": GateState, "Key": Key,
        "LimitVerdict": LimitVerdict, **vars(sys.modules[kind.__module__]), "Value": Any,
    }  # fmt: skip
    hints = get_type_hints(kind, localns=names)
    for name in form_of(kind).add.values():
        hints[name] = get_type_hints(getattr(kind, name).fget, localns=names)["return"]
    return hints
