"""The main path: two sides in, a verdict out. Each line of ``compare_sides`` can be opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalguard import tools
from evalguard.comparison.asked_comparison import StoredRequest
from evalguard.comparison.checkpoint_sizes import with_sizes
from evalguard.comparison.checks.side_differences import with_declared
from evalguard.comparison.draws import Stops
from evalguard.comparison.ending import finish_run
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.comparison.judge import build_report
from evalguard.comparison.looks import score_in_looks
from evalguard.comparison.needed_guards import find_guards
from evalguard.comparison.refusals import (
    can_stop_early,
    check_asked,
    check_measurable,
    check_models,
    check_sequential,
)
from evalguard.comparison.report_files import check_files, requested_files
from evalguard.comparison.result import CompareResult
from evalguard.comparison.stored_base import is_parquet, is_stored_base, read_baseline
from evalguard.comparison.typed_command import typed_comparison
from evalguard.config.guard import GuardSet
from evalguard.config.local_paths import resolve_path
from evalguard.config.options import DEFAULT_OUTPUT, CompareOptions, make_options
from evalguard.core.repeat_command import as_comparison
from evalguard.engine.choices import Choices, resolve_choices, with_execution, with_workers
from evalguard.engine.fairness import lead_to_tokenizer
from evalguard.engine.interrupts import interruptible
from evalguard.engine.loading.own_environment import shares_prefixes
from evalguard.engine.meter import Meter
from evalguard.engine.pair_waivers import with_start_date
from evalguard.engine.reference_scorer import read_reference
from evalguard.engine.score_models import score_sides
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.servers import keep_servers
from evalguard.engine.sources import (
    BaselineSource,
    ModelSource,
    ReferenceSource,
    RunSource,
    SideSpec,
    Source,
    refuse_lone_dump,
    resolve_side,
    with_base_settings,
    with_distinct_names,
    with_tokens_of,
)
from evalguard.errors import UsageError
from evalguard.harness.finished_runs.lmeval_run import share_documents
from evalguard.run_token import run_scope
from evalguard.store.run_folder import check_writable


def compare(
    base: str | Path, candidate: str | Path, options: CompareOptions | None = None, **given: Any
) -> CompareResult:
    """Compare a candidate with its base on the same documents.

    Args:
        base, candidate: each a model's name in the guard file, a model folder, a hub id, or the
            folder (or results file) of an lm-eval run made with ``--log_samples``; or both folders
            of what models put out, a folder a document (``docs/outputs.md``). ``base`` may also be
            a run folder or a history of evalguard that has its scores (``RUN:NAME`` is another
            model in there than the run's base, or a history's latest), or a file that
            ``save_reference`` wrote.
        options: how to compare; ``given`` are fields of ``CompareOptions`` that override it, e.g.
            ``tasks=["lambada_openai"], limit=500``.

    Returns:
        The result; a regression is a result, not an exception. See ``CompareResult``.

    Raises:
        UsageError: for names, options or guard files that cannot be used.
        EvaluationError: if a model could not be loaded or scored: nothing is known then.
        Interrupted: on Ctrl-C.
    """
    return compare_pair_of(str(base), str(candidate), make_options(options, **given))


@run_scope()
def compare_pair_of(
    base: str, candidate: str, options: CompareOptions, *, recurring: RecurringBase | None = None
) -> CompareResult:
    """``compare``, told whether its base comes again, with this candidate or another.

    Args:
        recurring: of a base that comes again; None of one that does not, as far as is known.
    """
    options = with_start_date(options)
    cwd = Path.cwd()
    request = StoredRequest(base=base, candidate=candidate, cwd=cwd, options=options)
    with keep_servers():
        finished = compare_sides(base, candidate, options, cwd=cwd, recurring=recurring)
        return finish_run(finished, request)


def compare_sides(
    base: str,
    candidate: str,
    options: CompareOptions,
    *,
    cwd: Path,
    refusal: Callable[[Source, Source], UsageError | None] = lambda _base, _candidate: None,
    recurring: RecurringBase | None = None,
) -> FinishedComparison:
    """Compare two sides, up to the verdict; nothing is written.

    Args:
        cwd: folder that names of models and files start at.
        refusal: why the two sides are not what is asked for; None where they are.
        recurring: of a base that is compared with more candidates.
    """
    meter = Meter()
    with interruptible("reading what is to be compared"):
        sources, choices = resolve_request(base, candidate, options, cwd=cwd)
        asked, options = options, with_execution(with_workers(options, choices), choices)
        choices = _check(sources, choices, options, cwd=cwd, refusal=refusal)
    if recurring is not None:
        choices = recurring.chosen(choices)
    with interruptible("scoring"), lead_to_tokenizer(options.command):
        stops: Stops | None = None  # where each task was stopped, if they are asked in looks
        if can_stop_early(sources, choices):
            scored, stops = score_in_looks(sources, choices, options, meter=meter)
        else:
            known = None if recurring is None else recurring.known(sources[0], choices)
            scored = score_sides(sources, choices, options, meter=meter, base=known)
            if recurring is not None:
                recurring.keep(scored[0], choices)
    with interruptible("comparing the scores"):
        scored = with_sizes(sources, scored, options.cache_dir)
        scored = with_declared(sources, scored, options.cache_dir)
        with meter.phase("comparing"):
            report = build_report(scored, choices, options, stops)
        # what a screen proposes is typed from it, with the guard file and the tasks of a night
        command = report.command if as_comparison(report.command) else ""
        report = replace(
            report,
            command=command or typed_comparison(base, candidate, asked),
            resources=meter.resources(),
        )
    return FinishedComparison(
        named=(base, candidate),
        sources=sources,
        scored=scored,
        choices=choices,
        options=options,
        report=report,
        meter=meter,
    )


def _check(
    sources: tuple[Source, Source],
    choices: Choices,
    options: CompareOptions,
    *,
    cwd: Path,
    refusal: Callable[[Source, Source], UsageError | None],
) -> Choices:
    """Refuse, before a model is loaded, what would be refused hours later."""
    refused = refusal(*sources)
    if refused is not None:
        raise refused
    if options.floor is not None:
        tools.fetch("read_given_floor")(options)
    choices = check_sequential(sources, choices, options)
    check_asked(sources, options)
    check_measurable(sources, choices)
    if options.write:
        check_writable(options.output_path or DEFAULT_OUTPUT)
    if choices.history is not None:
        tools.fetch("prepare_history")(choices.history)
    check_files(requested_files(options, cwd=cwd))
    return choices


@dataclass(slots=True)
class RecurringBase:
    """A base that several candidates are compared with, and that is scored once for all of them.

    Of a Hugging Face model the score cache has its answers, and what it keeps as a reference its
    distributions. Any other model's answers are held here, since no cache has them.
    """

    _scored: ScoredSide | None = None
    _question: tuple[object, ...] = ()

    def chosen(self, choices: Choices) -> Choices:
        """Return the choices of a comparison, told that its base comes again."""
        return replace(choices, distributions=replace(choices.distributions, base_recurs=True))

    def known(self, base: Source, choices: Choices) -> ScoredSide | None:
        """Return the base's scores, if they were asked in the same way; None if it has to be run.

        A base of type hf is loaded again, out of the cache: its distributions are met that way.
        """
        if not isinstance(base, ModelSource) or self._question != _question(choices):
            return None
        shows_none = not shares_prefixes(base.variant) or choices.distributions.mode == "off"
        return self._scored if shows_none else None

    def keep(self, scored: ScoredSide, choices: Choices) -> None:
        """Keep the base's scores for the next candidate."""
        self._scored, self._question = scored, _question(choices)


def _question(choices: Choices) -> tuple[object, ...]:
    return choices.tasks, choices.task_options, choices.policy


def resolve_request(
    base: str, candidate: str, options: CompareOptions, *, cwd: Path | None = None
) -> tuple[tuple[Source, Source], Choices]:
    """Settle what is compared, and how; refuse whatever can be seen to be wrong by now."""
    cwd = cwd or Path.cwd()
    guards, notes = find_guards((base, candidate), options, cwd=cwd)
    first = _read_stored_base(base, candidate, guards, options, cwd=cwd) or resolve_side(
        _side_of("base", base, options), guards, options, cwd=cwd
    )
    second = resolve_side(_side_of("cand", candidate, options), guards, options, cwd=cwd)
    refuse_lone_dump(first, second)
    if isinstance(first, RunSource) and isinstance(second, RunSource):
        share_documents(first.run, second.run)
    sources = with_distinct_names(first, with_base_settings(first, second))
    choices = resolve_choices(sources[0], sources[1], guards, options)
    second, of_second = with_tokens_of(sources[0], sources[1])
    first, of_first = with_tokens_of(second, sources[0])
    sources = first, second
    token_notes = tuple(filter(None, (of_first, of_second)))
    choices = replace(choices, notes=(*choices.notes, *notes, *token_notes))
    check_models(source for source in sources if isinstance(source, ModelSource))
    return sources, choices


def _read_stored_base(
    base: str, candidate: str, guards: GuardSet, options: CompareOptions, *, cwd: Path
) -> BaselineSource | ReferenceSource | None:
    """What a run folder, a history or a reference file keeps of a base; None: a model is named."""
    stored = None if base in guards.names else _find_stored_base(base, cwd)
    if stored is None:
        return None
    path, name = stored
    if options.base_model_args or options.base_set:
        raise UsageError(
            f"{path} has a base that was scored before: no model is loaded, so model arguments "
            "and settings have no effect",
            hint="leave them out, or name the model with --base instead",
        )
    if is_parquet(path):
        return read_reference(path)
    run = read_baseline(path, base=name, candidate=candidate)
    return BaselineSource(name=run.identity.name, run=run)


def _find_stored_base(base: str, cwd: Path) -> tuple[Path, str] | None:
    """The path of a stored base, as it was typed, and the model that is named in it, if one is."""
    for typed, name in ((base, ""), base.rpartition(":")[::2]):
        path = Path(typed).expanduser() if cwd == Path.cwd() else resolve_path(typed, cwd)
        if typed and ((not name and is_parquet(path)) or is_stored_base(path)):
            return path, name
    return None


def _side_of(role: str, spec: str, options: CompareOptions) -> SideSpec:
    model_args, assignment = (
        (options.base_model_args, options.base_set)
        if role == "base"
        else (options.cand_model_args, options.cand_set)
    )
    return SideSpec(role=role, spec=spec, model_args=model_args, assignment=assignment)
