"""What ``evalguard bisect`` does.

Compare and bisect, or resume a bisection after checking that models, settings and gate are
unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from evalguard.bisect.attach_bisection import check_unchanged
from evalguard.bisect.settings.derived_settings import why_unsearchable
from evalguard.comparison.asked_comparison import StoredRequest
from evalguard.comparison.compare import compare_sides
from evalguard.comparison.ending import finish_resumed_run, finish_run
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.comparison.result import CompareResult
from evalguard.comparison.stored_run import read_stored_run
from evalguard.config.options import NO_HISTORY, CompareOptions, make_options
from evalguard.engine.pair_waivers import with_start_date
from evalguard.engine.servers import keep_servers
from evalguard.errors import UsageError
from evalguard.report.compare_document import COMPARE_SCHEMA
from evalguard.run_token import run_scope
from evalguard.store.run_folder import read_result

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


@run_scope()
def bisect_settings(
    base: str | Path, candidate: str | Path, options: CompareOptions | None = None, **given: Any
) -> CompareResult:
    """Compare a candidate with its base, and find the settings that make it drift.

    As ``evalguard.compare`` with ``bisect="always"``: also where the gate passes, and with settings
    derived from the two models where the candidate declares none. Beside a stored base
    only declared settings can be searched.

    Raises:
        UsageError: there are no settings to search; before anything is scored.
        UsageError, EvaluationError, Interrupted: as ``evalguard.compare``.
    """
    options = with_start_date(make_options(options, **{"bisect": "always", **given}))
    cwd = Path.cwd()
    request = StoredRequest(base=str(base), candidate=str(candidate), cwd=cwd, options=options)
    with keep_servers():
        finished = compare_sides(
            str(base),
            str(candidate),
            options,
            cwd=cwd,
            refusal=partial(why_unsearchable, over=options.bisect_over or "settings"),
        )
        return finish_run(finished, request)


@run_scope()
def resume_bisection(run: str | Path, **given: Any) -> CompareResult:
    """Go on with a bisection that was stopped, from what is kept of its probes.

    No finished probe is measured again. Both sides are looked at as they are now: their scores come
    from the score cache, or are made again.

    Args:
        run: the run folder.
        given: ``bisect_budget``, ``bisect_jobs``, ``bisect_thorough``, ``output``,
            ``output_format``, ``quiet`` and ``timeout``, in place of those of then.

    Raises:
        UsageError: this is not a run folder of a bisection.
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
    there = read_result(folder, schema=COMPARE_SCHEMA)
    before = read_stored_run(
        folder
    ).report  # a damaged one is refused now, not after the models ran
    request = StoredRequest.read(folder)
    options = make_options(request.options, **_resolve_outputs(given))
    unkept = replace(options, write=False, history=NO_HISTORY)
    with keep_servers():
        again = compare_sides(request.base, request.candidate, unkept, cwd=request.cwd)
        check_unchanged(there, again.report)
        then = replace(
            before, run_folder=str(folder), bisect=None, bisect_reason="", bisect_ended=""
        )
        # as they were settled, but for what was left out of the comparison alone
        settled = replace(again.options, write=options.write, history=options.history)
        finished: FinishedComparison = replace(again, report=then, options=settled)
        return finish_resumed_run(finished, request)


def _resolve_outputs(given: dict[str, Any]) -> dict[str, Any]:
    """Let relative files start where they are named now, not where it all began."""
    files = given.get("output", ())
    several = [files] if isinstance(files, (str, Path)) else files
    return {**given, "output": [Path.cwd() / file for file in several]} if several else given
