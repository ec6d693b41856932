"""What documents of before said in another way, and what a gate's metrics say of the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from evalguard.core.gate import GateResult, gated_state
from evalguard.core.gate_state import GateState, Key
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.scores import PERPLEXITIES
from evalguard.report.contract.record_reading import (
    damaged_error,
    read_entries,
    read_key,
    read_list,
    read_record,
)

# Kinds of findings whose sentences held words of documents, and what is said of them instead.
_QUOTING = {
    "broken_documents": "a broken document",
    "prompts_differ": "prompts differ, as declared",
    "says_nothing": "the candidate's answers say nothing about it",
}
_UNQUOTED_REASON = "an earlier version's reason, which may hold words of documents, is quoted"


def quote_old_words(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Before there were quotes, sentences held words of documents: such a one is a quote."""
    found = {**fields}
    findings = [read_entries(one, "findings") for one in read_list(found.get("findings", []), "")]
    found["findings"] = [
        _quoted(one, "text", f"{_QUOTING[one['kind']]}{_numbered(one)}")
        if str(one.get("kind")) in _QUOTING
        else one
        for one in findings
    ]
    kinds = {
        str(one.get("task")): one.get("output_type", "")
        for one in read_list(found.get("tasks", []), "")
        if isinstance(one, Mapping)
    }
    reasons: dict[str, str] = {}
    comparisons = [read_entries(one, "") for one in read_list(found.get("comparisons", []), "")]
    for number, one in enumerate(comparisons):
        asked = (
            kinds.get(str(one.get("task"))) or "generate_until"
        )  # which is not known of the first
        generated = asked == "generate_until" and one.get("metric") not in PERPLEXITIES
        if generated and one.get("outcome") == "failed" and "quotes" not in one:
            reasons[str(one.get("reason", ""))] = _UNQUOTED_REASON
            comparisons[number] = _quoted(one, "reason", _UNQUOTED_REASON)
    found["comparisons"] = comparisons
    gate = found.get("gate")
    if reasons and isinstance(gate, Mapping) and isinstance(gate.get("reason"), str):
        said = gate["reason"]
        for old, new in reasons.items():
            said = said.replace(old, new) if old else said
        found["gate"] = {**gate, "reason": said}
    return found


def _quoted(fields: Mapping[str, Any], name: str, instead: str) -> dict[str, Any]:
    if "quotes" in fields:
        return {**fields}
    quote = {"what": "message", "text": fields.get(name, ""), "doc_id": None, "side": ""}
    return {**fields, name: instead, "quotes": [quote]}


def _numbered(finding: Mapping[str, Any]) -> str:
    values = finding.get("values")
    number = values.get("doc_id") if isinstance(values, Mapping) else None
    return "" if number is None else f" ({number})"


def side_fields(value: Any, where: str) -> dict[str, Any]:
    """Before there was a model_type, the description began with it."""
    fields = read_entries(value, where)
    described = str(fields.get("description", "")) if fields.get("kind") == "model" else ""
    return {"model_type": described.partition(",")[0], **fields}


def read_gated(gate: Any) -> list[dict[str, Any]]:
    """Return what the gate judged, an object for each metric."""
    gated = read_list(read_entries(gate, "gate").get("gated"), "gate.gated")
    return [read_entries(one, "gate.gated") for one in gated]


def gate_fields(gate: Any, gated: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the gate's fields; which metrics brought it about, the gated ones say."""
    return {
        **gate,
        "holm_p_values": [one.get("holm_p_value") for one in gated],
        **dict.fromkeys(("regressed", "undecided", "failed"), ()),
    }


def restore_states(report: CompareReport, gated: Sequence[Mapping[str, Any]]) -> GateResult:
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


def bisect_fields(value: Any) -> Any:
    """Return a bisection's fields; searches of before name the guilty settings alone."""
    if not isinstance(value, Mapping):
        return value
    culprits = read_list(value.get("culprits", []), "bisect.culprits")
    searches = enumerate(read_list(value.get("searches"), "bisect.searches"))
    told = [_with_guilty(one, f"bisect.searches[{number}]", culprits) for number, one in searches]
    return {**value, "searches": told}


def _with_guilty(value: Any, where: str, culprits: Sequence[Any]) -> dict[str, Any]:
    """The figures of the guilty settings of a search stand above it where they are not in it."""
    fields = read_entries(value, where)
    if fields.get("guilty") is not None:
        return fields
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
    return {**fields, "guilty": [own[name] for name in named]}
