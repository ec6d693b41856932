"""Whether a bisection goes on about what it began with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from typing import Any

from evalguard.core.gate_state import Key
from evalguard.core.reports.compare_report import CompareReport
from evalguard.errors import MisalignedRunsError
from evalguard.report.contract.compare_document import compare_document

_THEN = "when this bisection began"
_START_ANEW = (
    "give the same evalguard bisect command anew; scores in the cache are not computed twice"
)
_GATE = ("margin", "fail_on", "confidence", "state")
_LIMIT = ("task", "filter", "of", "metric", "limit")
_SETTING = ("target", "reference", "value")
_Document = Mapping[str, Any]


def check_unchanged(there: _Document, report: CompareReport) -> None:
    """Refuse to go on about other models, settings or gates, or other scores of the same.

    Args:
        there: the document of the comparison that the bisection began with.
        report: the same comparison, made now.

    Raises:
        MisalignedRunsError: naming what changed.
    """
    now = json.loads(
        json.dumps(compare_document(report))
    )  # lists for tuples, as in what was stored
    for role in ("base", "candidate"):
        where = [_computed_with(one, role) for one in (there, now)]
        _check_side(role, there[role], now[role], _differing(*where))
    before = {_key(one): one for one in there["comparisons"]}
    _check_gate(before.keys(), there["gate"], now)
    for one in now["comparisons"]:
        old = before.get(_key(one))
        if old is None or any(old[name] != one[name] for name in ("n_used", "base", "candidate")):
            raise _changed_error(
                f"{one['task']} {one['metric']} is not what it was {_THEN}: "
                f"{_values(old)} then, {_values(one)} now"
            )


def _check_side(role: str, then: _Document, now: _Document, elsewhere: str) -> None:
    if then["digest"] != now["digest"]:
        raise _changed_error(
            f"the {role} {now['name']} is not what it was {_THEN}: its digest was "
            f"{then['digest']}, and is {now['digest']}: "
            f"{elsewhere or 'weights, settings or code changed'}"
        )
    before, after = (_by_name(one["settings"]) for one in (then, now))
    for name in (*before, *after):
        if before.get(name) != after.get(name):
            raise _changed_error(
                f"setting '{name}' of the {role} {now['name']} is not what it was {_THEN}: "
                f"{_setting_text(before.get(name))} then, {_setting_text(after.get(name))} now"
            )


def _computed_with(there: _Document, role: str) -> dict[str, Any]:
    """What of a side's environment its digest depends on; {} where that is not known."""
    found = (there.get("environment") or {}).get(role) or {}
    own = {name: found[name] for name in ("device", "threads") if name in found}
    return own | dict(found.get("packages") or {})


def _differing(then: _Document, now: _Document) -> str:
    """What is known of both times, and differs, in one line."""
    return "; ".join(
        f"{name} {then[name]} then, {now[name]} now"
        for name in then
        if name in now and then[name] != now[name]
    )


def _by_name(settings: Sequence[_Document]) -> dict[str, dict[str, Any]]:
    return {one["name"]: {what: one[what] for what in _SETTING} for one in settings}


def _setting_text(setting: _Document | None) -> str:
    if setting is None:
        return "not declared"
    return f"{setting['target']} {setting['reference']} -> {setting['value']}"


def _check_gate(before: Set[Key], then: _Document, found: _Document) -> None:
    """Refuse where a guard file asks for other metrics now, or for another gate."""
    gone = before - {_key(one) for one in found["comparisons"]}
    if gone:
        raise _changed_error(f"{' '.join(min(gone)[::2])} was compared {_THEN}, and is not now")
    now = found["gate"]
    if [_key(one) for one in then["gated"]] != [_key(one) for one in now["gated"]]:
        raise _changed_error(f"the gate judges other metrics than {_THEN}")
    for name in _GATE:
        if then[name] != now[name]:
            raise _other_gate_error(f"{name} {then[name]} then, {now[name]} now")
    limits = [_limits_text(one) for one in (then, now)]
    if limits[0] != limits[1]:
        raise _other_gate_error(f"{limits[0]} then, {limits[1]} now")
    if [_key(one) for one in then["accepted"]] != [_key(one) for one in now["accepted"]]:
        raise _other_gate_error("waivers let other metrics through")


def _limits_text(gate: _Document) -> str:
    """The limits of a gate in one line."""
    limits = [" ".join(str(one[what]) for what in _LIMIT if one[what]) for one in gate["limits"]]
    return "; ".join(limits) or "no limits"


def _other_gate_error(what: str) -> MisalignedRunsError:
    return _changed_error(f"the gate is not what it was {_THEN}: {what}")


def _changed_error(what: str) -> MisalignedRunsError:
    return MisalignedRunsError(what, hint=_START_ANEW)


def _key(comparison: _Document) -> Key:
    return comparison["task"], comparison["filter"], comparison["metric"]


def _values(comparison: _Document | None) -> str:
    if comparison is None:
        return "not there"
    return f"{comparison['base']} and {comparison['candidate']} on {comparison['n_used']} documents"
