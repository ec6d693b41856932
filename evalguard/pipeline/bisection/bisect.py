"""Bisect: the settings that make a candidate drift, from two names, or from where it stopped."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalguard.compare_report import CompareReport, RunIdentity
from evalguard.errors import MisalignedRunsError, UsageError
from evalguard.gate_reason import Key
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.stored_request import StoredRequest
from evalguard.pipeline.bisection.unsearchable import unsearchable
from evalguard.pipeline.compare import compared
from evalguard.pipeline.ending import continued, ended
from evalguard.pipeline.options import CompareOptions, make_options
from evalguard.pipeline.result import CompareResult
from evalguard.pipeline.stored_run import stored_run
from evalguard.report.contract import SCHEMA, document
from evalguard.store import read_result

# What may be another one when a bisection goes on: it changes no answer that is known.
MAY_CHANGE = (
    "bisect_budget",
    "bisect_jobs",
    "bisect_thorough",
    "output",
    "output_format",
    "quiet",
    "timeout",
)
_GATE = ("margin", "fail_on", "confidence", "state")
_ANEW = "give the same evalguard bisect command anew; scores in the cache are not computed twice"


def bisect_settings(
    base: str | Path, candidate: str | Path, options: CompareOptions | None = None, **given: Any
) -> CompareResult:
    """Compare a candidate with its base, and find the settings that make it drift.

    As ``evalguard.compare`` with ``bisect="always"``: also where the gate passes, and with settings
    derived from the two models where the candidate declares none. Beside a stored base
    (``baseline``) only declared settings can be searched.

    Raises:
        UsageError: there are no settings to search; before anything is scored.
        UsageError, EvaluationError, Interrupted: as ``evalguard.compare``.
    """
    options = make_options(options, **{"bisect": "always", **given})
    cwd = Path.cwd()
    request = StoredRequest(base=str(base), candidate=str(candidate), cwd=cwd, options=options)
    finished = compared(str(base), str(candidate), options, cwd=cwd, refusal=unsearchable)
    return ended(finished, request)


def resume_bisection(run: str | Path, **given: Any) -> CompareResult:
    """Go on with a bisection that was stopped, from the journal in its run folder.

    No finished probe is measured again. Both sides are looked at as they are now: their scores come
    from the score cache, or are made again.

    Args:
        run: the run folder.
        given: ``bisect_budget``, ``bisect_jobs``, ``bisect_thorough``, ``output``,
            ``output_format``, ``quiet`` and ``timeout``, in place of those of then.

    Raises:
        UsageError: this is no run folder of a bisection.
        StoreError: its result.json is damaged.
        MisalignedRunsError: a side or its scores are not what they were.
        EvaluationError, Interrupted: as ``evalguard.compare``.
    """
    folder = Path(run)
    for name in given:
        if name not in MAY_CHANGE:
            raise UsageError(
                f"a bisection goes on with the options that it began with, and {name} is one",
                hint=f"these may be others: {', '.join(MAY_CHANGE)}",
            )
    there = read_result(folder, schema=SCHEMA)
    before = stored_run(folder).report  # a damaged one is refused now, not after the models ran
    request = StoredRequest.read(folder)
    options = make_options(request.options, **_from_here(given))
    unkept = replace(options, write=False, use_history=False)
    again = compared(request.base, request.candidate, unkept, cwd=request.cwd)
    _check_same(there, again.report)
    then = replace(before, run_folder=str(folder), bisect=None, bisect_reason="")
    finished: Finished = replace(again, report=then, options=options)
    return continued(finished, request)


def _from_here(given: dict[str, Any]) -> dict[str, Any]:
    """Let relative files start where they are named now, not where it all began."""
    files = given.get("output", ())
    several = [files] if isinstance(files, (str, Path)) else files
    return {**given, "output": [Path.cwd() / file for file in several]} if several else given


def _check_same(there: dict[str, Any], now: CompareReport) -> None:
    """Refuse to go on about other models, or other scores of the same."""
    for role, side in (("base", now.base), ("candidate", now.candidate)):
        _check_side(role, there[role], side)
    before = {_key(one): one for one in there["comparisons"]}
    found = document(now)
    _check_judged(before.keys(), there["gate"], found)
    for one in found["comparisons"]:
        old = before.get(_key(one))
        if old is None or any(old[name] != one[name] for name in ("n_used", "base", "candidate")):
            raise MisalignedRunsError(
                f"{one['task']} {one['metric']} is not what it was when this bisection began: "
                f"{_values(old)} then, {_values(one)} now",
                hint=_ANEW,
            )


def _check_side(role: str, there: dict[str, Any], now: RunIdentity) -> None:
    if there["digest"] != now.digest:
        raise MisalignedRunsError(
            f"the {role} {now.name} is not what it was when this bisection began: its digest was "
            f"{there['digest']}, and is {now.digest}: weights, settings, code or versions changed",
            hint=_ANEW,
        )


def _check_judged(before: Set[Key], then: dict[str, Any], found: dict[str, Any]) -> None:
    """Refuse where a guard file asks for other metrics now, or for another gate."""
    gone = before - {_key(one) for one in found["comparisons"]}
    if gone:
        raise MisalignedRunsError(
            f"{' '.join(min(gone)[::2])} was compared when this bisection began, and is not now",
            hint=_ANEW,
        )
    if [_key(one) for one in then["gated"]] != [_key(one) for one in found["gate"]["gated"]]:
        raise MisalignedRunsError(
            "the gate judges other metrics than when this bisection began", hint=_ANEW
        )
    for name in _GATE:
        if then[name] != found["gate"][name]:
            raise MisalignedRunsError(
                f"the gate is not what it was when this bisection began: {name} {then[name]} then, "
                f"{found['gate'][name]} now",
                hint=_ANEW,
            )


def _key(comparison: dict[str, Any]) -> tuple[str, str, str]:
    return comparison["task"], comparison["filter"], comparison["metric"]


def _values(comparison: dict[str, Any] | None) -> str:
    if comparison is None:
        return "not there"
    return f"{comparison['base']} and {comparison['candidate']} on {comparison['n_used']} documents"
