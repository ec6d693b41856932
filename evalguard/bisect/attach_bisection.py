"""After the verdict: bisect where that was asked for, and write what was found beside it.

The run folder is complete before a bisection begins. Whatever happens in it, the verdict, the exit
code and the files stay what they were.
"""

from __future__ import annotations

import json
import logging
import shlex
import shutil
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalguard.bisect.bisect_report import BisectReport
from evalguard.bisect.bisection import BisectFindings, Bisection
from evalguard.bisect.metric_search import KEPT_FOLDER
from evalguard.bisect.oracle.oracle_opening import open_model_oracle
from evalguard.bisect.oracle.settings_oracle import OpenOracle
from evalguard.bisect.settings.derived_settings import SearchableCandidate, why_unsearchable
from evalguard.bisect.subject import Subject, choose_subject, explain_chance
from evalguard.comparison.asked_comparison import StoredRequest
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.comparison.judge import build_report
from evalguard.core.checksum import with_checksum
from evalguard.core.compare_report import CompareReport, NotBisected
from evalguard.core.gate_state import Key
from evalguard.core.pairing import finite_rows
from evalguard.engine.bisect_choice import why_not_derivable
from evalguard.engine.score_models import score_sides
from evalguard.engine.servers import keep_servers
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvalguardError, Interrupted, MisalignedRunsError, error_text
from evalguard.page.progress import ProgressLine
from evalguard.report.compare_document import COMPARE_SCHEMA, compare_document
from evalguard.report.record_documents import NON_FINITE, null_texts
from evalguard.store.run_folder import read_result, write_document

_LOG = logging.getLogger(__name__)


def attach_bisection(
    finished: FinishedComparison,
    request: StoredRequest,
    *,
    open_oracle: OpenOracle = open_model_oracle,
) -> CompareReport:
    """Return a finished comparison's report with its bisection, or with why there is none.

    No exception but one of the interpreter's own leaves this: a verdict is not lost any more.

    Args:
        request: what was asked for; kept in the run folder, so that the bisection can go on.
        open_oracle: asks the candidate under other assignments, in place of the real one.
    """
    report = finished.report
    outcome: BisectReport | str
    ended: NotBisected = ""
    try:
        against = _reason_against(finished)
        outcome, ended = against or (_bisect_or_reason(finished, request, open_oracle), "")
    except (KeyboardInterrupt, Interrupted):
        outcome, ended = _interrupted_reason(finished), "interrupted"
    except Exception as error:  # noqa: BLE001 - the verdict stands, whatever it is
        _LOG.info("the bisection failed", exc_info=True)  # shown under --debug
        outcome, ended = error_text(error), "failed"
    if isinstance(outcome, str):
        with_it = replace(report, bisect_reason=outcome, bisect_ended=ended)
    else:
        with_it = replace(report, bisect=outcome)
    return with_it if with_it == report else _store_bisection(with_it)


def _interrupted_reason(finished: FinishedComparison) -> str:
    """Nothing was found out by then; how to go on, if the run folder knows what was asked for."""
    message, folder = "interrupted before anything was found out", finished.folder
    if folder is None or not StoredRequest.is_in(folder):
        return message
    return f"{message}; evalguard bisect --resume {shlex.quote(str(folder))} goes on"


def _bisect_or_reason(
    finished: FinishedComparison, request: StoredRequest, open_oracle: OpenOracle
) -> BisectReport | str:
    finished = _with_finite_scores(_score_in_full(finished))
    searchable = SearchableCandidate.of(finished)
    if isinstance(searchable, str):
        return searchable
    subject = choose_subject(
        finished.report.comparisons,
        finished.report.gate,
        finished.scored[0].tables,
        failing_only=finished.choices.bisect.use == "auto",
        divergences=finished.scored[1].divergences,
        candidate=finished.scored[1].tables,
    )
    if not isinstance(subject, Subject):
        return subject
    stored = finished.folder is not None and request.write(finished.folder)
    with keep_servers(), ProgressLine(quiet=finished.options.quiet) as progress:
        bisection = Bisection(
            findings=BisectFindings(finished=finished, searchable=searchable),
            open_oracle=open_oracle,
            progress=progress,
        )
        result = bisection.run(subject, resumable=stored)
    if finished.folder is not None and result.status != "stopped":
        shutil.rmtree(finished.folder / KEPT_FOLDER, ignore_errors=True)
    return result


def _with_finite_scores(finished: FinishedComparison) -> FinishedComparison:
    """The comparison of the documents that have a finite score on both sides, as it was judged.

    An assignment is asked about the others too, and what it answers there decides nothing.
    """
    base, candidate = finished.scored
    theirs = {table.key: table for table in candidate.tables}
    pairs = [
        finite_rows(table, theirs[table.key]) if table.key in theirs else (table, None)
        for table in base.tables
    ]
    finite = {table.key: table for _, table in pairs if table is not None}
    return replace(
        finished,
        scored=(
            replace(base, tables=tuple(ours for ours, _ in pairs)),
            replace(candidate, tables=tuple(finite.get(t.key, t) for t in candidate.tables)),
        ),
    )


def _score_in_full(finished: FinishedComparison) -> FinishedComparison:
    """The comparison of all documents, where that was stopped early."""
    run = finished.report.sequential
    if run is None or not run.early:
        return finished
    choices = replace(finished.choices, sequential_alpha=None)
    scored = score_sides(finished.sources, choices, finished.options)
    report = build_report(scored, choices, finished.options)
    full_report = replace(
        report, run_folder=finished.report.run_folder, command=finished.report.command
    )
    return replace(finished, scored=scored, choices=choices, report=full_report)


def _reason_against(finished: FinishedComparison) -> tuple[str, NotBisected] | None:
    """Why there is nothing to bisect, with how that ended; "" where nobody expects it, None where
    there is."""
    use, candidate = finished.choices.bisect.use, finished.candidate
    if finished.choices.bisect.instead:
        return finished.choices.bisect.instead, ""
    gate = finished.report.gate
    if use == "never" or (use == "auto" and gate.state != "regressed"):
        declared = candidate is not None and candidate.variant.settings
        if use == "never" or gate.state != "undecided" or not declared:
            return "", ""
        return next(iter(explain_chance(finished.report.comparisons, gate)), ""), ""
    over = finished.choices.bisect.over
    refusal = why_unsearchable(*finished.sources, over=over)
    if refusal is not None:
        return error_text(refusal) if use == "always" or candidate is not None else "", ""
    if (
        over == "settings"
        and use == "auto"
        and candidate is not None
        and not candidate.variant.settings
    ):
        models = (source.variant for source in finished.sources if isinstance(source, ModelSource))
        why = next(filter(None, map(why_not_derivable, models)), "")
        return (
            f"the candidate declares no settings, and none can be derived: {why}"
            if why
            else "the candidate declares no settings (evalguard bisect derives them from the two "
            "models)",
            "undeclared",
        )
    return None


def _store_bisection(report: CompareReport) -> CompareReport:
    """Put the bisection into the run folder's result; a disk that refuses costs only that."""
    if report.run_folder is None:
        return report
    folder = Path(report.run_folder)
    try:
        write_document(folder, "result.json", _result_with_bisection(folder, report))
    except (EvalguardError, OSError, ValueError) as error:
        where = folder / "result.json"
        return report.with_unstored(f"the bisection is not in {where}: {error_text(error)}")
    return report


def _result_with_bisection(folder: Path, report: CompareReport) -> dict[str, object]:
    """The document that is there, with the bisection in it: everything else stays as it was."""
    there = read_result(
        folder, schema=COMPARE_SCHEMA
    )  # refused, not sealed anew, if it was changed
    new = compare_document(report)
    lost = {at: kind for at, kind in new[NON_FINITE].items() if at.startswith("bisect.")}
    notes = [*there["notes"], *null_texts(lost)]
    non_finite = {NON_FINITE: {**there[NON_FINITE], **lost}} if NON_FINITE in there else {}
    return with_checksum(
        {
            **there,
            "bisect": new["bisect"],
            "bisect_reason": new["bisect_reason"],
            "bisect_ended": new["bisect_ended"],
            "notes": list(dict.fromkeys(notes)),
            **non_finite,
        }
    )


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
        where = [_computed_with(document, role) for document in (there, now)]
        _check_side(role, there[role], now[role], _differing(*where))
    before = {_key(comparison): comparison for comparison in there["comparisons"]}
    _check_gate(before.keys(), there["gate"], now)
    for comparison in now["comparisons"]:
        old = before.get(_key(comparison))
        if old is None or any(
            old[name] != comparison[name] for name in ("n_used", "base", "candidate")
        ):
            raise _changed_error(
                f"{comparison['task']} {comparison['metric']} is not what it was {_THEN}: "
                f"{_values(old)} then, {_values(comparison)} now"
            )


def _check_side(role: str, then: _Document, now: _Document, elsewhere: str) -> None:
    if then["digest"] != now["digest"]:
        raise _changed_error(
            f"the {role} {now['name']} is not what it was {_THEN}: its digest was "
            f"{then['digest']}, and is {now['digest']}: "
            f"{elsewhere or 'weights, settings or code changed'}"
        )
    before, after = (_by_name(side["settings"]) for side in (then, now))
    for name in (*before, *after):
        if before.get(name) != after.get(name):
            raise _changed_error(
                f"setting '{name}' of the {role} {now['name']} is not what it was {_THEN}: "
                f"{_setting_text(before.get(name))} then, {_setting_text(after.get(name))} now"
            )


def _computed_with(there: _Document, role: str) -> dict[str, Any]:
    """What of a side's environment its digest depends on; {} where that is not known."""
    environment = (there.get("environment") or {}).get(role) or {}
    own = {name: environment[name] for name in ("device", "threads") if name in environment}
    return own | dict(environment.get("packages") or {})


def _differing(then: _Document, now: _Document) -> str:
    """What is known of both times, and differs, in one line."""
    return "; ".join(
        f"{name} {then[name]} then, {now[name]} now"
        for name in then
        if name in now and then[name] != now[name]
    )


def _by_name(settings: Sequence[_Document]) -> dict[str, dict[str, Any]]:
    return {setting["name"]: {what: setting[what] for what in _SETTING} for setting in settings}


def _setting_text(setting: _Document | None) -> str:
    if setting is None:
        return "not declared"
    return f"{setting['target']} {setting['reference']} -> {setting['value']}"


def _check_gate(before: Set[Key], then: _Document, found: _Document) -> None:
    """Refuse where a guard file asks for other metrics now, or for another gate."""
    gone = before - {_key(comparison) for comparison in found["comparisons"]}
    if gone:
        raise _changed_error(f"{' '.join(min(gone)[::2])} was compared {_THEN}, and is not now")
    now = found["gate"]
    if [_key(metric) for metric in then["gated"]] != [_key(metric) for metric in now["gated"]]:
        raise _changed_error(f"the gate judges other metrics than {_THEN}")
    for name in _GATE:
        if then[name] != now[name]:
            raise _other_gate_error(f"{name} {then[name]} then, {now[name]} now")
    limits = [_limits_text(gate) for gate in (then, now)]
    if limits[0] != limits[1]:
        raise _other_gate_error(f"{limits[0]} then, {limits[1]} now")
    if [_key(waiver) for waiver in then["accepted"]] != [
        _key(waiver) for waiver in now["accepted"]
    ]:
        raise _other_gate_error("waivers let other metrics through")


def _limits_text(gate: _Document) -> str:
    """The limits of a gate in one line."""
    limits = [
        " ".join(str(limit[what]) for what in _LIMIT if limit[what]) for limit in gate["limits"]
    ]
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
