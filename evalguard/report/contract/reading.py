"""A document of ``evalguard.compare/1``, read back into the report that it was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from evalguard.core.gate import GateResult, gated_state
from evalguard.core.gate_state import GateState, Key
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.report_faults import report_faults
from evalguard.errors import StoreError
from evalguard.report.contract.compare import COMPARE_SCHEMA, EXPECTED, FAMILY, WITH_CAVEATS
from evalguard.report.contract.forms import PEAKS, SIGMA_NAMES
from evalguard.report.contract.json_values import (
    NON_FINITE,
    damaged_error,
    non_finite_of_texts,
    read_entries,
    read_key,
    read_list,
    read_non_finite,
    read_record,
    read_text,
    restore_non_finite,
)


def read_report(document: Mapping[str, Any]) -> CompareReport:
    """Return the report that a stored document was made of.

    Numbers that JSON cannot hold come back as what ``non_finite`` says that they were. Keys that
    an earlier version did not write have their defaults; keys of a later one are ignored. What
    contradicts itself was changed by hand or is broken: it is refused, not shown.

    Raises:
        StoreError: it follows another contract, or is damaged; the message names the key.
    """
    report = parse_report(document)
    for where, what in report_faults(report):
        raise damaged_error(where, what)
    return report


def parse_report(document: Mapping[str, Any]) -> CompareReport:
    """Return what a document says, whether or not it contradicts itself.

    Raises:
        StoreError: as ``read_report``, for keys that are missing or hold something else.
    """
    found = document.get("schema") if isinstance(document, Mapping) else None
    if found != COMPARE_SCHEMA:
        raise StoreError(
            f"the stored result follows {found!r}, and this evalguard reads {COMPARE_SCHEMA}",
            hint="use the evalguard that wrote it, or compare again",
        )
    try:
        return _read_document(document)
    except RecursionError as error:
        raise damaged_error("the document", "is nested too deeply") from error


def _read_document(document: Mapping[str, Any]) -> CompareReport:
    if "comparisons" not in document:
        raise damaged_error("comparisons", "is missing")
    fields = _restore(document)
    gated = _read_gated(fields.get("gate"))
    report: CompareReport = read_record(
        CompareReport,
        {
            **fields,
            "distributions": [
                _distribution_record(one, f"distributions[{number}]")
                for number, one in enumerate(fields["distributions"])
            ],
            "gate": _gate_record(fields["gate"], gated),
            "across_tasks": _across_record(fields.get("across_tasks")),
            "bisect": _bisect_record(fields.get("bisect")),
            "resources": _resources_record(fields.get("resources")),
            "version": fields.get("evalguard", ""),
        },
    )
    if report.bisect and all(search.inside for search in report.bisect.searches):
        raise damaged_error("bisect.searches", "has none of whole settings")
    return replace(report, gate=_with_states(report, gated))


def _restore(document: Mapping[str, Any]) -> dict[str, Any]:
    """Put back the numbers that JSON cannot hold, in the document and in its parts with caveats."""
    parts: dict[str, list[dict[str, Any]]] = {
        key: [
            _with_texts(read_entries(one, f"{key}[{number}]"), "caveats", f"{key}[{number}].")
            for number, one in enumerate(read_list(document.get(key, []), key))
        ]
        for key in WITH_CAVEATS
    }
    own = {key: value for key, value in document.items() if key not in WITH_CAVEATS}
    own = _with_texts(own, "notes", "")
    if NON_FINITE in document:
        lost = read_non_finite(document[NON_FINITE])
    else:
        lost = non_finite_of_texts(own["notes"])
        for key, some in parts.items():
            for number, one in enumerate(some):
                lost |= non_finite_of_texts(one["caveats"], f"{key}[{number}].")
    fields = restore_non_finite(own, "notes", lost, absent=[FAMILY])
    for key, some in parts.items():
        fields[key] = [
            restore_non_finite(one, "caveats", lost, f"{key}[{number}].", absent=EXPECTED)
            for number, one in enumerate(some)
        ]
    return fields


def _with_texts(fields: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    return {**fields, name: read_record(tuple[str, ...], fields.get(name, []), f"{where}{name}")}


# Parts of a document that have another form than their record: its fields, checked later on.


def _distribution_record(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A percentile is written as its figure with one more key."""
    percentiles = {
        name: [
            {"percent": read_entries(one, f"{where}.{name}").get("percent"), "figure": one}
            for one in read_list(fields.get(name, []), f"{where}.{name}")
        ]
        for name in ("kl_percentiles", "dp_percentiles")
    }
    return {**fields, **percentiles}


def _read_gated(gate: Any) -> list[dict[str, Any]]:
    gated = read_list(read_entries(gate, "gate").get("gated"), "gate.gated")
    return [read_entries(one, "gate.gated") for one in gated]


def _gate_record(gate: Mapping[str, Any], gated: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    accepted = enumerate(read_list(gate.get("accepted", []), "gate.accepted"))
    return {
        **gate,
        "gated": [read_key(one, "gate.gated") for one in gated],
        "holm_p_values": [
            read_record(float | None, one.get("holm_p_value"), "gate.gated.holm_p_value")
            for one in gated
        ],
        "accepted": [
            {"key": read_key(one, f"gate.accepted[{number}]"), "waiver": one}
            for number, one in accepted
        ],
        **dict.fromkeys(("regressed", "undecided", "failed"), ()),  # the gated metrics say them
    }


def _with_states(report: CompareReport, gated: Sequence[Mapping[str, Any]]) -> GateResult:
    """The gate, with what each gated metric brought about; documents did not always say."""
    gate = report.gate
    let_through = {one.key for one in gate.accepted}
    comparisons = {one.key: one for one in report.comparisons}
    states: dict[GateState, list[Key]] = {state: [] for state in get_args(GateState)}
    for number, (key, one) in enumerate(zip(gate.gated, gated, strict=True)):
        where = f"gate.gated[{number}]"
        state: GateState = "passed"
        if "state" in one:
            state = read_record(GateState, one["state"], f"{where}.state")
        elif key in comparisons and key not in let_through:
            p_value, rule = gate.holm_p_values[number], gate.fail_on
            state = gated_state(
                comparisons[key], p_value, fail_on=rule, level=gate.level, margin=gate.margin
            )
        elif key not in let_through:
            raise damaged_error(where, "names a metric that is not among the comparisons")
        states[state].append(key)
    return replace(
        gate,
        regressed=tuple(states["regressed"]),
        undecided=tuple(states["undecided"]),
        failed=tuple(states["failed"]),
    )


def _across_record(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    name = "across_tasks"
    fields = read_entries(value, name)
    return {
        **fields,
        "metrics": [
            read_key(one, f"{name}.metrics")
            for one in read_list(fields.get("metrics"), f"{name}.metrics")
        ],
        "max_z_metric": read_key(fields.get("max_z_metric"), f"{name}.max_z_metric"),
        "left_out": [
            (read_key(one, name), read_text(one, "reason", name))
            for one in read_list(fields.get("left_out", []), f"{name}.left_out")
        ],
    }


def _resources_record(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    fields = read_entries(value, "resources")
    return {**fields, **{name: fields.get(written) for name, written in PEAKS.items()}}


def _bisect_record(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    fields = read_entries(value, "bisect")
    recommended = fields.get("recommended")
    if recommended is not None:
        recommended = _rename_to_sigma(read_entries(recommended, "bisect.recommended"))
    culprits = read_list(fields.get("culprits", []), "bisect.culprits")
    return {
        **fields,
        "recommended": recommended,
        "expected": fields.get("expected_evaluations", []),
        "searches": [
            _search_record(one, f"bisect.searches[{number}]", culprits)
            for number, one in enumerate(read_list(fields.get("searches"), "bisect.searches"))
        ],
    }


def _search_record(value: Any, where: str, culprits: Sequence[Any]) -> dict[str, Any]:
    fields = _rename_to_sigma(read_entries(value, where))
    guilty = fields.get("guilty")
    if guilty is None:
        guilty = _read_guilty(fields, where, culprits)
    return {
        **fields,
        "suspects": [
            {**read_entries(one, f"{where}.suspects"), "name": read_text(one, "setting", where)}
            for one in read_list(fields.get("suspects", []), f"{where}.suspects")
        ],
        "culprits": _rename_all_to_sigma(guilty, f"{where}.guilty"),
        **{
            name: _rename_all_to_sigma(fields.get(name, []), f"{where}.{name}")
            for name in ("parts", "measured")
        },
    }


def _rename_to_sigma(found: Mapping[str, Any]) -> dict[str, Any]:
    """Drifts of a document under the names of the record, in whatever unit they are."""
    return {**found, **{SIGMA_NAMES[n]: found[n] for n in SIGMA_NAMES if n in found}}


def _rename_all_to_sigma(value: Any, where: str) -> list[dict[str, Any]]:
    return [_rename_to_sigma(read_entries(one, where)) for one in read_list(value, where)]


def _read_guilty(fields: Mapping[str, Any], where: str, culprits: Sequence[Any]) -> list[Any]:
    """The guilty settings of a search that only names them: their figures stand above it."""
    own = {
        one["setting"]: {"alone_share": 0.0 if one.get("sigma_alone") is None else 1.0, **one}
        for one in culprits
        if isinstance(one, Mapping) and read_key(one, "bisect.culprits") == read_key(fields, where)
    }
    named = read_list(fields.get("culprits", []), f"{where}.culprits")
    absent = [name for name in named if name not in own]
    if absent:
        raise damaged_error(
            f"{where}.culprits", f"names {absent[0]!r}, of which no figures are there"
        )
    return [own[name] for name in named]
