"""Bisect: the settings that make a candidate drift, from two names, or from where it stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from evalguard.errors import UsageError
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.stored_request import StoredRequest
from evalguard.pipeline.bisection.unchanged import check_unchanged
from evalguard.pipeline.bisection.unsearchable import unsearchable
from evalguard.pipeline.compare import compared
from evalguard.pipeline.ending import continued, ended
from evalguard.pipeline.options import CompareOptions, make_options
from evalguard.pipeline.result import CompareResult
from evalguard.pipeline.stored_run import stored_run
from evalguard.pipeline.waivers import begun_today
from evalguard.report.contract import SCHEMA
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
    options = begun_today(make_options(options, **{"bisect": "always", **given}))
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
    check_unchanged(there, again.report)
    then = replace(before, run_folder=str(folder), bisect=None, bisect_reason="")
    finished: Finished = replace(again, report=then, options=options)
    return continued(finished, request)


def _from_here(given: dict[str, Any]) -> dict[str, Any]:
    """Let relative files start where they are named now, not where it all began."""
    files = given.get("output", ())
    several = [files] if isinstance(files, (str, Path)) else files
    return {**given, "output": [Path.cwd() / file for file in several]} if several else given
