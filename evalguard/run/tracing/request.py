"""TraceRequest: the two sides, the documents, and what is refused before anything is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalguard.config.guard import GuardSet
from evalguard.config.local_paths import resolve_path
from evalguard.errors import UsageError
from evalguard.run.choices import Choices, resolve_choices
from evalguard.run.model_checks import check_models
from evalguard.run.needed_guards import find_guards
from evalguard.run.options import DEFAULT_OUTPUT, CompareOptions
from evalguard.run.sources import (
    ModelSource,
    SideSpec,
    Source,
    is_user_folder,
    resolve_side,
    with_base_settings,
    with_distinct_names,
)
from evalguard.run.stored_run import StoredRun
from evalguard.run.tracing.moved_documents import MovedDocuments, choose_moved, find_comparisons
from evalguard.run.tracing.sides import TracedSide, refuse_untraceable, refuse_worker_base
from evalguard.run.tracing.traced_documents import (
    DocumentChoice,
    list_recorded_inputs,
    read_own_documents,
)
from evalguard.run.tracing.unscored_documents import choose_first
from evalguard.store.activation_dumps import is_dump

# Where the documents are the user's own, no task is asked for; nothing loads one of this name.
_NO_TASK = "(own documents)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """``own``: the user's documents; ``reports``: where comparisons lie, of which others are.

    ``candidate`` is a folder where activations were recorded, by names that ``name_map`` tells.
    """

    base: ModelSource
    candidate: ModelSource | Path
    name_map: Path | None
    choices: Choices
    choice: DocumentChoice
    own: MovedDocuments | None
    reports: Path | None
    notes: tuple[str, ...]


def resolve_trace_request(
    base: str,
    candidate: str,
    options: CompareOptions,
    choice: DocumentChoice,
    name_map: Path | None,
) -> TraceRequest:
    """Settle names, tasks and documents; refuse what can be seen to be wrong by now."""
    cwd = Path.cwd()
    guards, notes = find_guards((base, candidate), options, cwd=cwd)
    first = refuse_untraceable(resolve_named_side("base", base, guards, options, cwd), "--base")
    folder = resolve_path(candidate, cwd)
    second: ModelSource | Path = folder
    named = candidate in guards.names and not is_user_folder(guards, folder)
    is_model = named or bool(options.cand_model_args or options.cand_set)
    if name_map is None and (is_model or not is_dump(folder)):
        other = resolve_named_side("cand", candidate, guards, options, cwd)
        pair = with_distinct_names(first, with_base_settings(first, other))
        first, second = refuse_untraceable(pair[0], "--base"), refuse_untraceable(pair[1], "--cand")
    refuse_worker_base(first, second)
    return complete_request(first, second, (guards, notes), options, choice, name_map)


def complete_request(
    base: ModelSource,
    candidate: ModelSource | Path,
    found: tuple[GuardSet, tuple[str, ...]],
    options: CompareOptions,
    choice: DocumentChoice,
    name_map: Path | None = None,
) -> TraceRequest:
    """Settle tasks and documents of sides that are known.

    Args:
        found: guard files, and what is to be said of them.

    Raises:
        UsageError: there are no documents, or they cannot be used.
    """
    guards, notes = found
    own = reports = last = None
    if not choice.own and not choice.ids and not options.tasks and isinstance(candidate, Path):
        recorded = list_recorded_inputs(candidate)
        choice = dataclasses.replace(choice, inputs=recorded, limit=len(recorded) or choice.limit)
    if choice.own:
        sequences = tuple(read_own_documents(choice))
        own = MovedDocuments(sequences=sequences, chosen="documents of your own")
    elif isinstance(candidate, ModelSource):
        reports = options.output_path or DEFAULT_OUTPUT
        last = next(find_comparisons(reports, base.name, candidate.name, options.tasks), None)
    tasks = options.tasks or (() if last is None else last.tasks) or ((_NO_TASK,) if own else ())
    sides = [one for one in (base, candidate) if isinstance(one, ModelSource)]
    if not tasks and not _tasks_of_guards(sides):
        missing = f", and there is no comparison of the two in {reports}" if reports else ""
        raise UsageError(
            f"no documents to trace: no task is named{missing}",
            hint="--text FILE reads a document of your own, --tasks NAME those of a task",
        )
    # the documents' number is the command's own matter
    of_tasks = dataclasses.replace(options, tasks=tasks, limit=None, track=("none",))
    choices = resolve_choices(base, sides[-1], guards, of_tasks)
    check_models(sides)
    return TraceRequest(
        base=base,
        candidate=candidate,
        name_map=name_map,
        choices=choices,
        choice=choice,
        own=own,
        reports=reports,
        notes=(*notes, *choices.notes),
    )


def _tasks_of_guards(sides: Sequence[ModelSource]) -> tuple[str, ...]:
    names = [side.name for side in sides]
    guards = (side.guard for side in sides if side.guard is not None)
    return next((guard.tasks_of(names[0], names[-1]) for guard in guards), ())


def resolve_named_side(
    role: str,
    spec: str,
    guards: GuardSet,
    options: CompareOptions,
    cwd: Path,
    *,
    named_by: str = "",
) -> Source:
    model_args, assignment = (
        (options.base_model_args, options.base_set)
        if role == "base"
        else (options.cand_model_args, options.cand_set)
    )
    side = SideSpec(
        role=role, spec=spec, model_args=model_args, assignment=assignment, named_by=named_by
    )
    return resolve_side(side, guards, options, cwd=cwd)


def choose_documents(
    request: TraceRequest, base: TracedSide | None, candidate: TracedSide
) -> MovedDocuments:
    """The documents that are read: the user's, else those that moved, else the first ones.

    Those that moved are of the newest comparison of these two models with these settings: a name
    may have been another model's since. ``base``: None where it is not loaded yet.
    """
    if request.own is not None:
        return request.own
    tasks, others = request.choices.tasks, None
    for run in _find_named(request, tasks):
        moved = choose_moved(run, request.choice, tasks) if _is_of(run, base, candidate) else None
        if moved is not None:
            return moved
        others = others or run
    options, render_chat = request.choices.task_options, (base or candidate).render_chat
    first = choose_first(tasks, options, request.choice, render_chat=render_chat)
    if others is None:
        return first
    told = f"{first.chosen}: {others.folder} compared other models or settings of these names"
    return dataclasses.replace(first, chosen=told)


def _find_named(request: TraceRequest, tasks: Sequence[str]) -> Iterator[StoredRun]:
    if request.reports is None or not isinstance(request.candidate, ModelSource):
        return iter(())
    return find_comparisons(request.reports, request.base.name, request.candidate.name, tasks)


def _is_of(run: StoredRun, base: TracedSide | None, candidate: TracedSide) -> bool:
    stored = (run.report.base, run.report.candidate)
    pairs = zip(stored, (base, candidate), strict=True)
    return all(one is None or told.digest == one.identity.digest for told, one in pairs)
