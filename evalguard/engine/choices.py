"""Choices: what this comparison runs, from the command line, the guard file and stored runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import cast

from evalguard.config.declared_options import declared_keys
from evalguard.config.guard import Guard, GuardSet
from evalguard.config.guard_search import embedded_tasks
from evalguard.config.options import (
    AskedMetrics,
    CompareOptions,
    MemoryUse,
    RunOptions,
    WorkerUse,
    with_run_of,
)
from evalguard.core.chat import ChatRequest
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.figures import FIGURES, figure_named, split_name
from evalguard.core.gate import Gate, GateOptions
from evalguard.core.limits import KINDS, Limit
from evalguard.core.ray_plan import RayPlan
from evalguard.core.scorer import ScoringPolicy
from evalguard.core.verdict import Margin
from evalguard.engine.bisect_choice import BisectChoice, choose_bisect, why_not_derivable
from evalguard.engine.cluster_fields import ClusterChoice
from evalguard.engine.distribution_choice import (
    DistributionChoice,
    choose_distributions,
    choose_memory,
)
from evalguard.engine.history_location import choose_history_file
from evalguard.engine.pair_waivers import with_waivers
from evalguard.engine.sources import ModelSource, ReferenceSource, RunSource, Source, StoredSource
from evalguard.engine.tracker_choice import choose_sinks
from evalguard.errors import GuardFileError, UsageError, nearest
from evalguard.harness.task_options import ChatFile, TaskOptions, read_chat_file
from evalguard.models.arguments import CHAT_TYPES, HF_TYPES
from evalguard.models.served.shown_logprobs import TOP_ARGUMENT
from evalguard.store.cache_folder import cache_size_limit
from evalguard.worker.ray_cluster import check_ray

DEFAULT_SEED = 1234
DEFAULT_SEQUENTIAL_ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Everything decided before the first model is loaded.

    ``declared`` holds the differences between the two sides that the user declared to be meant,
    ``allow`` also those that a setting under test brings with it. ``sequential_alpha`` is the
    chance of a wrong verdict that a sequential run may have; None: all documents are asked.
    ``memory`` says whether both models are loaded at the same time.
    ``worker`` says whether models are scored in worker processes, ``timeout`` how many seconds one
    request to these may take; None: any number.
    ``execution`` says where models run, as ``RayPlan.parse`` reads it; "": on this machine.
    ``cache_max_size`` is in bytes; None: no limit.
    ``history`` is the file that the run is added to, ``track`` where the finished run is sent,
    with documents and files if ``track_documents``.
    """

    tasks: tuple[str, ...]
    task_options: TaskOptions
    policy: ScoringPolicy
    gate: Gate
    declared: frozenset[str]
    allow: frozenset[str]
    clusters: ClusterChoice = field(default_factory=ClusterChoice)
    answers: Mapping[str, ExpectedAnswer] = field(default_factory=dict)
    distributions: DistributionChoice = field(default_factory=DistributionChoice)
    memory: MemoryUse = "auto"
    sequential_alpha: float | None = None
    bisect: BisectChoice = field(default_factory=BisectChoice)
    worker: WorkerUse = "auto"
    timeout: float | None = None
    execution: str = ""
    cache_max_size: int | None = None
    history: Path | None = None
    track: tuple[str, ...] = ()
    track_documents: bool = False
    notes: tuple[str, ...] = ()


def resolve_choices(
    base: Source, candidate: Source, guards: GuardSet, options: CompareOptions
) -> Choices:
    """Settle tasks, task options, scoring policy, gate and declared differences.

    The command line wins over the guard file; of two guard files the candidate's counts. Where a
    side is a stored run, its tasks and prompt options are the default.

    Raises:
        UsageError: if there are no tasks, or the sides' options cannot be met together.
    """
    guard = _find_guard(candidate) or _find_guard(base)
    judging = guard or _named_guard(guards)
    run = _run_options(judging, base, candidate)
    stored = next((s for s in (base, candidate) if isinstance(s, StoredSource)), None)
    chats = _chat_files(guard, base, candidate, options)
    tasks = options.tasks or (
        (*_own_tasks(guard, base, candidate),) if not options.requests else ()
    )
    tasks = _with_chats(tasks, chats) or _stored_tasks(stored)
    tasks = tasks or (base.tasks if isinstance(base, ReferenceSource) else ())
    if not tasks and (isinstance(base, ModelSource) or isinstance(candidate, ModelSource)):
        raise UsageError(
            "no tasks to compare on",
            hint=_taken_for_hub_ids(base, candidate)
            + "name them with --tasks A,B or in the guard file (evalguard tasks lists them), or "
            "give chat requests with --requests FILE",
        )
    declared = _declared_differences(guard, base, candidate, options)
    asked = with_run_of(run, options)
    bisect = choose_bisect(asked)
    distributions = choose_distributions((base, candidate), run, options)
    return Choices(
        tasks=tasks,
        task_options=replace(_task_options(guard, stored, asked), chats=chats),
        policy=_scoring_policy(asked),
        gate=with_waivers(
            gate_chat_figures(
                _resolve_gate(judging, base, candidate, options),
                {name: file.requests for name, file in chats.items()},
                tokens_shown=all(_shows_tokens(side) for side in (base, candidate)),
            ),
            judging,
            base.name,
            candidate.name,
            today=options.today,
        ),
        declared=declared,
        allow=declared
        | ({"reading"} if "tokens" in declared else frozenset())
        | _differences_by_settings(base, candidate)
        | _differences_by_search(base, candidate, bisect),
        clusters=ClusterChoice(
            of_all=options.cluster, by_task=judging.clusters if judging is not None else {}
        ),
        answers=judging.answers if judging is not None else {},
        distributions=distributions,
        memory=choose_memory(asked, distributions),
        sequential_alpha=_sequential_alpha(asked),
        bisect=bisect,
        worker=asked.worker or "auto",
        timeout=asked.timeout,
        execution=choose_execution(run, asked),
        cache_max_size=cache_size_limit(asked.cache_max_size),
        history=choose_history_file(judging, options),
        track=choose_sinks(options.track, judging, unasked=not options.git_bisect),
        track_documents=asked.track_documents,
        notes=(
            *_guard_notes(guards, guard, judging, base, candidate),
            *_chat_notes(chats, base, candidate),
        ),
    )


def with_workers(options: CompareOptions, choices: Choices) -> CompareOptions:
    """The options with what was settled about worker processes."""
    return replace(options, worker=choices.worker, timeout=choices.timeout)


def with_execution(options: CompareOptions, choices: Choices) -> CompareOptions:
    """The options with the place where models run, as it was settled.

    Raises:
        UsageError: models are to run on a cluster, and Ray is missing or too old, or there is no
            cache to bring scores together in.
    """
    if not choices.execution:
        return replace(options, execution="")
    check_ray()
    if not options.use_cache:
        raise UsageError(
            "--no-cache: actors bring their scores together in the score cache",
            hint="--cache-dir FOLDER with an empty folder scores everything anew",
        )
    return replace(options, execution=choices.execution, worker="always")


def _find_guard(source: Source) -> Guard | None:
    return source.guard if isinstance(source, ModelSource) else None


def _named_guard(guards: GuardSet) -> Guard | None:
    """The guard file that ``--config`` names, where no side is a model of it.

    Folders, hub ids and finished runs are judged by its gate, too: a gate that is named and not
    held to would let pass what it forbids. A file that was only found is not about these.
    """
    return guards.guards[0] if guards.guards and guards.origin == "named" else None


def _run_options(guard: Guard | None, *sides: Source) -> RunOptions:
    """How models are run; of two finished runs, which are not, only where the result goes."""
    if guard is None:
        return RunOptions()
    if any(isinstance(side, ModelSource) for side in sides):
        return guard.run
    run = guard.run
    return RunOptions(history=run.history, track=run.track, track_documents=run.track_documents)


def _own_tasks(guard: Guard | None, base: Source, candidate: Source) -> tuple[str, ...]:
    """The guard file's tasks."""
    return guard.tasks_of(base.name, candidate.name) if guard else ()


def _taken_for_hub_ids(*sides: Source) -> str:
    """Which sides are no folder here: a finished run of a mistyped path names no tasks either."""
    absent = [
        side.name
        for side in sides
        if isinstance(side, ModelSource) and side.guard is None and not Path(side.name).exists()
    ]
    absent = [name for name in dict.fromkeys(absent) if "/" in name and "://" not in name]
    if not absent:
        return ""
    return f"there is no folder {' or '.join(absent)} here (taken for a hub id); "


def _chat_files(
    guard: Guard | None, base: Source, candidate: Source, options: CompareOptions
) -> dict[str, ChatFile]:
    """The file of chat requests that counts, by the name of its task."""
    path = options.requests
    if path is None and guard is not None and not options.tasks:
        path = guard.requests_of(base.name, candidate.name)
    if path is None:
        return {}
    file = read_chat_file(path.expanduser())
    return {file.name: file}


def _with_chats(tasks: tuple[str, ...], chats: Mapping[str, ChatFile]) -> tuple[str, ...]:
    for name in chats:
        if name in tasks:
            raise UsageError(
                f"'{name}' is both a task and the name of the requests in {chats[name].path}",
                hint="rename the file: its name is that of the task",
            )
    return (*tasks, *chats)


def _shows_tokens(side: Source) -> bool:
    """Whether a side tells the tokens that it writes; chat endpoints do where they are asked to."""
    if not isinstance(side, ModelSource) or side.variant.model not in CHAT_TYPES:
        return True
    return bool(side.variant.model_args.get(TOP_ARGUMENT))


def _chat_notes(chats: Mapping[str, ChatFile], *sides: Source) -> Iterator[str]:
    """What of chat requests only servers follow, and how two kinds of models are compared."""
    models = [side for side in sides if isinstance(side, ModelSource)]
    here = [side for side in models if side.variant.model in HF_TYPES]
    for chat in chats.values():
        unmet = Counter(name for request in chat.requests for name in request.unmet)
        if here and unmet:
            number = f"of {len(chat.requests):,}"
            names = ", ".join(f"{name} ({n:,} {number})" for name, n in unmet.items())
            yield (
                f"{chat.name}: a model in this process is not made to keep to {names}; its answers "
                "are judged by it all the same"
            )
        if here and len(here) < len(models):
            yield (
                f"{chat.name}: prompts are compared as conversations: a server does not show how "
                "it writes them for its model"
            )


def _stored_tasks(stored: StoredSource | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(table.task for table in stored.run.tables)) if stored else ()


def _task_options(
    guard: Guard | None, stored: StoredSource | None, options: CompareOptions
) -> TaskOptions:
    of_run = _stored_prompt_options(stored)
    # As lm-eval was given it: tasks with fewer documents than that have other numbers of their own.
    given = _stored_limit(stored) if stored else None
    limit = _first_given(options.limit, given, of_run.get("limit"))
    shots = _first_given(options.num_fewshot, of_run.get("num_fewshot"))
    return TaskOptions(
        include_paths=_include_paths(guard, options),
        num_fewshot=cast("int | None", shots),
        seed=cast(int, _first_given(options.seed, of_run.get("fewshot_seed"), DEFAULT_SEED)),
        limit=cast("float | None", limit if limit != "all" else None),
        apply_chat_template=options.apply_chat_template or False,
        system_instruction=options.system_instruction or "",
        fewshot_as_multiturn=options.fewshot_as_multiturn,
        gen_kwargs=options.gen_kwargs,
        # A stored lm-eval run holds the score of the first answer only.
        average_repeats=not isinstance(stored, RunSource),
        confirm_unsafe=options.confirm_run_unsafe_code,
    )


def _stored_prompt_options(stored: StoredSource | None) -> dict[str, object]:
    """Prompt options that all tables of a stored run share."""
    tables = stored.run.tables if stored else ()
    shared: dict[str, object] = dict(tables[0].run) if tables else {}
    for table in tables[1:]:
        shared = {k: v for k, v in shared.items() if table.run.get(k) == v}
    return shared


def _stored_limit(stored: StoredSource) -> object:
    """The limit that a stored run was given; a task with fewer documents says "all" of its own."""
    if isinstance(stored, RunSource):
        return stored.run.environment.get("limit")
    limits = [table.run.get("limit") for table in stored.run.tables]
    return max((limit for limit in limits if isinstance(limit, (int, float))), default=None)


def _include_paths(guard: Guard | None, options: CompareOptions) -> tuple[Path, ...]:
    """The tasks that come with evalguard, the guard file's folders, the user's.

    lm-eval lets the last folder that defines a name win, so the most specific one comes last.
    """
    of_guard = guard.include_paths if guard else ()
    for folder in of_guard:
        if guard and not folder.is_dir():
            raise GuardFileError(
                f"include_path: there is no folder {folder}",
                where=guard.include_where,
                hint="the folder that holds the tasks' YAML files; a relative path starts at the "
                "guard file",
            )
    paths = (
        *embedded_tasks(),
        *of_guard,
        *(path.expanduser().resolve() for path in options.include_path),
    )
    return tuple(dict.fromkeys(paths))


def _scoring_policy(options: CompareOptions) -> ScoringPolicy:
    return ScoringPolicy(
        batch_size=None if options.batch_size == "auto" else options.batch_size,
        token_budget=options.token_budget or 0,
        scorer=options.scorer or "fast",
        share_prefixes=options.share_prefixes is not False,
        device=options.device,
        rolling_bos=options.rolling_bos or "lm-eval",
        seed=DEFAULT_SEED if options.seed is None else options.seed,
        threads=options.threads,
    )


def _resolve_gate(
    guard: Guard | None, base: Source, candidate: Source, options: CompareOptions
) -> Gate:
    of_file = guard.gate_of(base.name, candidate.name) if guard else GateOptions()
    values = {field.name: getattr(of_file, field.name) for field in fields(of_file)}
    for name in declared_keys(CompareOptions, "gate"):
        if getattr(options, name) is not None:
            values[name] = getattr(options, name)
    if options.margin is not None:
        values["margins"] = ()  # what was typed holds for every metric
    values |= _asked_metrics(of_file, values["margins"], options.gate_limits)
    # What a guard file says that answers must be, it holds them to.
    expected = guard.answers if guard else {}
    values["declared"] = tuple(
        f"{task}/{name}" for task, answers in expected.items() for name in answers.figures
    )
    try:
        return Gate(**values)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _asked_metrics(
    of_file: GateOptions, margins: Sequence[tuple[str, Margin]], given: AskedMetrics
) -> dict[str, object]:
    """The gate's fields with what ``--gate-metric`` asks of single metrics and figures.

    What it names is gated, whatever the guard file confines the gate to; a limit there is in place
    of the guard file's.
    """
    limits, own, figures = [], {}, []
    for name, value in given.items():
        if value is None:
            figures.append(_gated_figure(name))
        elif (margin := _margin_of_metric(name, value)) is not None:
            own[name] = margin
        else:
            limits.append(Limit.parse(name, value))
    named, typed = (*figures, *own), {limit.name for limit in limits}
    only = of_file.gate_metrics
    return {
        "limits": (*(limit for limit in of_file.limits if limit.name not in typed), *limits),
        "margins": (*(entry for entry in margins if entry[0] not in own), *own.items()),
        "figures": tuple(dict.fromkeys((*of_file.figures, *figures))),
        "gate_metrics": tuple(dict.fromkeys((*only, *named))) if only else (),
        "advisory": tuple(metric for metric in of_file.advisory if metric not in named),
    }


def _gated_figure(name: str) -> str:
    if figure_named(name) is not None:
        return name
    _, metric, _ = split_name(name)
    known = KINDS.get(metric)
    raise UsageError(
        f"--gate-metric {name} says nothing that the gate could hold it to"
        if known
        else f"'{metric}' is no figure of generated answers{nearest(metric, FIGURES)}",
        hint=f"--gate-metric {name}={'0.01' if known == 'upper' else '0.99'}"
        if known
        else f"figures: {', '.join(FIGURES)}; the metrics of tasks are gated without it",
    )


def _margin_of_metric(name: str, value: float | str) -> Margin | None:
    """The margin that a value is; None where it is a limit."""
    _, metric, _ = split_name(name)
    if not isinstance(value, str) or (metric in KINDS and value.strip().endswith("%")):
        return None
    if metric in KINDS and figure_named(name) is None:
        raise UsageError(
            f"the limit of {metric} is a number, not {value}: it has no drift that a margin holds",
            hint=f"--gate-metric {metric}=0.01",
        )
    try:
        margin = Margin.parse(value)
    except ValueError as error:
        raise UsageError(
            f"--gate-metric {name}: {error}",
            hint="a share (0, 0.02, 2%) is a limit, points (1pp) are a margin",
        ) from error
    if margin.value == 0.0:
        raise UsageError(f"--gate-metric {name}: a margin is above 0, not {value}")
    return margin


def _declared_differences(
    guard: Guard | None, base: Source, candidate: Source, options: CompareOptions
) -> frozenset[str]:
    pair = guard.pair(base.name, candidate.name) if guard else None
    return options.allow_differing | (pair.differs if pair else frozenset())


def _differences_by_settings(base: Source, candidate: Source) -> frozenset[str]:
    """Differences of what is read that a setting away from its reference is meant to make."""
    active = [
        setting
        for source in (base, candidate)
        if isinstance(source, ModelSource)
        for setting in source.variant.settings
        if source.variant.assignment.get(setting.name) != setting.reference
    ]
    brought = {"tokens" for setting in active if setting.changes_encoding}
    brought |= {"prompt" for setting in active if setting.changes_prompt}
    return frozenset(brought | {"length" for setting in active if setting.changes_length})


def _differences_by_search(base: Source, candidate: Source, bisect: BisectChoice) -> frozenset[str]:
    """Token ids, where the settings that are searched are what differs between two models.

    BOS and the tokenizer are among these; other vocabularies have to be declared all the same.
    """
    if bisect.use != "always":
        return frozenset()
    sides = [side.variant for side in (base, candidate) if isinstance(side, ModelSource)]
    derived = len(sides) == 2 and not sides[1].settings
    searched = derived and not any(why_not_derivable(side) for side in sides)
    return frozenset({"tokens"} if searched else ())


def _sequential_alpha(options: CompareOptions) -> float | None:
    if not options.sequential:
        return None
    alpha = options.sequential_alpha
    return DEFAULT_SEQUENTIAL_ALPHA if alpha is None else alpha


def _guard_notes(
    guards: GuardSet, guard: Guard | None, judging: Guard | None, *sides: Source
) -> tuple[str, ...]:
    if guard is not None and guards.origin == "embedded":
        return (f"no guard file here: the built-in demo's is used ({guard.label})",)
    if guard is None and judging is not None:
        runs = any(isinstance(side, ModelSource) for side in sides)
        what = "its run, gate and clusters count" if runs else "its gate and clusters count"
        return (f"no side is a model of {judging.label}: {what}",)
    if guard is None and guards.guards and guards.origin == "evalguard.yaml":
        return (
            f"no side is a model of {guards.where}: it does not count (--config {guards.where} "
            "holds to its gate)",
        )
    return ()


def _first_given(*values: object) -> object:
    return next((value for value in values if value is not None), None)


def choose_execution(run: RunOptions, options: CompareOptions) -> str:
    """Settle where models run; of the guard file's amounts those count that nobody typed.

    Raises:
        UsageError: it is no place, or memory no size.
    """
    text = options.execution
    if text in ("", "here"):
        return ""
    if "?" not in text:
        memory = cache_size_limit(run.memory_each, environ={})
        amounts = {
            "actors": run.actors, "num_gpus": run.num_gpus, "num_cpus": run.num_cpus,
            "memory": memory,
        }  # fmt: skip
        given = "&".join(f"{name}={value}" for name, value in amounts.items() if value is not None)
        text = f"{text}?{given}" if given else text
    RayPlan.parse(text)
    return text


# Of any answer, and more of them is a change for the worse.
_OF_ALL = ("empty", "loops")
# Likewise, where somebody says why an answer ended; and where both models show their tokens: else
# only answers that are the same would count.
_WHERE_SAID, _OF_TOKENS = ("cut",), ("first_difference_beyond_ties",)


def gate_chat_figures(
    gate: Gate, chats: Mapping[str, Sequence[ChatRequest]], *, tokens_shown: bool
) -> Gate:
    """Return a gate that is held to every figure that requests make known, of answers to them.

    Args:
        chats: requests by the name of the task that they are.
        tokens_shown: whether both models show the tokens that they write.
    """
    known, perhaps = list(gate.figures), list(gate.figures_where_known)
    for task, requests in chats.items():
        asked = {
            name for request in requests for name in ExpectedAnswer.of_request(request).figures
        }
        known += [f"{task}/{name}" for name in FIGURES if name in asked or name in _OF_ALL]
        of_tokens = _OF_TOKENS if tokens_shown else ()
        perhaps += [f"{task}/{name}" for name in (*_WHERE_SAID, *of_tokens)]
    return replace(
        gate,
        figures=tuple(dict.fromkeys(known)),
        figures_where_known=tuple(dict.fromkeys(perhaps)),
    )
