"""The main job: two sides in, a verdict out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalguard.errors import UsageError
from evalguard.pipeline.baseline.baseline import read_baseline
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.stored_request import StoredRequest
from evalguard.pipeline.choices import Choices, choose
from evalguard.pipeline.conclusion import concluded
from evalguard.pipeline.ending import DEFAULT_OUTPUT, ended
from evalguard.pipeline.guards import find_guards
from evalguard.pipeline.history.keeping import check_history
from evalguard.pipeline.interruption import interruptible
from evalguard.pipeline.measurable import check_measurable
from evalguard.pipeline.measured_floor import given_floor
from evalguard.pipeline.meter import Meter
from evalguard.pipeline.options import CompareOptions, make_options
from evalguard.pipeline.preflight import check_models
from evalguard.pipeline.report_files import asked_files, check_files
from evalguard.pipeline.result import CompareResult
from evalguard.pipeline.scoring import score_sides
from evalguard.pipeline.sequential import score_in_looks
from evalguard.pipeline.sequential_choice import checked_sequential, worth_looking
from evalguard.pipeline.sources import (
    KeptSource,
    ModelSource,
    Side,
    Source,
    resolve,
    tell_apart,
)
from evalguard.pipeline.stops import Stops
from evalguard.pipeline.waivers import begun_today
from evalguard.store import check_writable


def compare(
    base: str | Path, candidate: str | Path, options: CompareOptions | None = None, **given: Any
) -> CompareResult:
    """Compare a candidate with its base on the same documents.

    Args:
        base, candidate: each a model's name in the guard file, a model folder, a hub id, or the
            folder (or results file) of an lm-eval run made with ``--log_samples``. With
            ``baseline``, ``base`` is the name of a model in it, or "".
        options: how to compare; ``given`` are fields of ``CompareOptions`` that override it, e.g.
            ``tasks=["lambada_openai"], limit=500``.

    Returns:
        The result; a regression is a result, not an exception. See ``CompareResult``.

    Raises:
        UsageError: for names, options or guard files that cannot be used.
        EvaluationError: if a model could not be loaded or scored: nothing is known then.
        Interrupted: on Ctrl-C.
    """
    options = begun_today(make_options(options, **given))
    cwd = Path.cwd()
    request = StoredRequest(base=str(base), candidate=str(candidate), cwd=cwd, options=options)
    return ended(compared(str(base), str(candidate), options, cwd=cwd), request)


def compared(
    base: str,
    candidate: str,
    options: CompareOptions,
    *,
    cwd: Path,
    refusal: Callable[[Source, Source], UsageError | None] = lambda _base, _candidate: None,
) -> Finished:
    """Compare two sides, up to the verdict; nothing is written.

    Args:
        cwd: folder that names of models and files start at.
        refusal: why the two sides are not what is asked for; None where they are.
    """
    meter = Meter()
    with interruptible("reading what is to be compared"):
        given_floor(options)  # refused now, not after the models were scored
        sources, choices = prepare(base, candidate, options, cwd=cwd)
        refused = refusal(*sources)
        if refused is not None:
            raise refused
        choices = checked_sequential(sources, choices, options)
        check_measurable(sources, choices)
        if options.write:
            check_writable(options.output_path or DEFAULT_OUTPUT)
        check_history(choices.history)
        check_files(asked_files(options, cwd=cwd))
    stops: Stops | None = None
    with interruptible("scoring"):
        if worth_looking(sources, choices):
            scored, stops = score_in_looks(sources, choices, options, meter=meter)
        else:
            scored = score_sides(sources, choices, options, meter=meter)
    with interruptible("comparing the scores"):
        with meter.phase("comparing"):
            report = concluded(scored, choices, options, stops)
        report = replace(report, resources=meter.resources())
    return Finished(
        named=(base, candidate),
        sources=sources,
        scored=scored,
        choices=choices,
        options=options,
        report=report,
        meter=meter,
    )


def prepare(
    base: str, candidate: str, options: CompareOptions, *, cwd: Path | None = None
) -> tuple[tuple[Source, Source], Choices]:
    """Settle what is compared, and how; refuse whatever can be seen to be wrong by now."""
    cwd = cwd or Path.cwd()
    guards, notes = find_guards((base, candidate), options, cwd=cwd)
    sources = tell_apart(
        _stored_base(base, candidate, options)
        or resolve(_side("base", base, options), guards, options, cwd=cwd),
        resolve(_side("cand", candidate, options), guards, options, cwd=cwd),
    )
    choices = choose(sources[0], sources[1], guards, options)
    choices = replace(choices, notes=(*choices.notes, *notes))
    check_models(source for source in sources if isinstance(source, ModelSource))
    return sources, choices


def _stored_base(base: str, candidate: str, options: CompareOptions) -> KeptSource | None:
    if options.baseline is None:
        return None
    if options.base_model_args or options.base_set:
        raise UsageError(
            "--baseline takes a base that was scored before: no model is loaded, so model "
            "arguments and settings have no effect",
            hint="leave them out, or name the model with --base instead",
        )
    run = read_baseline(options.baseline, base=base, candidate=candidate)
    return KeptSource(name=run.identity.name, run=run)


def _side(role: str, spec: str, options: CompareOptions) -> Side:
    model_args, assignment = (
        (options.base_model_args, options.base_set)
        if role == "base"
        else (options.cand_model_args, options.cand_set)
    )
    return Side(role=role, spec=spec, model_args=model_args, assignment=assignment)
