"""Which models are loaded when, each compared with those before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from evalguard.config.options import CompareOptions
from evalguard.conversion.building import is_built_by_every_run
from evalguard.conversion.planning import plan_conversion
from evalguard.core.document_columns import Rows
from evalguard.core.findings import Finding
from evalguard.core.scorer import AheadScorer, ModelDescription, Request, Scorer, ScoringPolicy
from evalguard.core.settings import Variant, digest_of
from evalguard.engine.batches import check_same_policy, policy_after
from evalguard.engine.block_store import LoadedModel
from evalguard.engine.choices import Choices
from evalguard.engine.cluster_fields import check_clusters
from evalguard.engine.error_places import with_location
from evalguard.engine.executor import Executor, served_scorer
from evalguard.engine.fairness import (
    AskedPrompt,
    RequestPlace,
    check_encodings,
    check_pieces,
    check_vocabularies,
    find_other_encodings,
    place_of,
    prompt_of,
    read_asked_prompts,
    refuse_other_prompts,
)
from evalguard.engine.interrupts import interruptible
from evalguard.engine.loading.foreign_code import (
    has_own_process,
    needs_worker,
    note_task_code,
    runs_foreign_code,
    runs_other_code,
)
from evalguard.engine.loading.known_models import KnownModel, KnownModels
from evalguard.engine.loading.lazy_scorer import LazyScorer, is_loaded
from evalguard.engine.loading.own_environment import asks_server, shares_prefixes
from evalguard.engine.loading.scorer_opening import open_scorer
from evalguard.engine.loading.tokenizer_ahead import Encode, read_tokenizer
from evalguard.engine.memory import MemoryPolicy
from evalguard.engine.meter import Meter
from evalguard.engine.servers import keep_servers
from evalguard.engine.slots import ClusterSlots
from evalguard.engine.sources import ModelSource
from evalguard.engine.task_scores import TaskScoring
from evalguard.errors import FallbackError, WorkerError
from evalguard.harness.tasks import load_tasks
from evalguard.models.arguments import check_shows_likelihoods
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import check_unloaded
from evalguard.models.tokenizers import clear_shared_texts
from evalguard.page.progress import ProgressLine
from evalguard.run_token import current_run, keeps_for_itself
from evalguard.store.answer_journal import ANSWERS_FOLDER, ANSWERS_SUFFIX, AnswerFile
from evalguard.store.cache_folder import forget_old_runs, limit_cache, open_cache_dir

# Enough to see a tokenizer that differs, and encoded in no time.
_ENCODED_DOCUMENTS = 8
_WARMING_DOCUMENTS = 4
PerModel = TypeVar("PerModel")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Where models are loaded and scored, one after the other or side by side, on the same tasks.

    A model is refused as soon as it is loaded if it cannot be compared with the first one.

    ``known`` is what is remembered of models; None: every model is loaded. ``shown_tokens``: how
    many tokens of its distributions a model in this process shows, beside a server that shows some.
    """

    executor: Executor
    choices: Choices
    options: CompareOptions
    cache_dir: Path
    known: KnownModels | None = None
    shown_tokens: int = 0
    _opened: list[Scorer] = field(default_factory=list)
    _descriptions: list[ModelDescription] = field(default_factory=list)
    _asked: dict[RequestPlace, AskedPrompt] = field(default_factory=dict)
    _clients: dict[str, Scorer] = field(default_factory=dict)
    _unchecked: list[ModelSource] = field(default_factory=list)
    _waiting: list[ModelSource] = field(default_factory=list)
    _answers: dict[Path, AnswerFile] = field(default_factory=dict)

    @property
    def memory(self) -> MemoryPolicy:
        """Which models are in memory at the same time."""
        return MemoryPolicy(self.choices.memory)

    @property
    def places(self) -> int | None:
        """Where a cluster has room for a model; None: the models are on this machine."""
        return None if self.executor.slots is None else self.executor.slots.places

    def holds_beside(self, first: LoadedModel, other: ModelSource) -> bool:
        """Whether another model is to be loaded beside a first one."""
        described, loaded = first.scorer.describe(), is_loaded(first.scorer)
        return self.memory.takes_beside(described, other.variant, loaded=loaded, places=self.places)

    def expect_prompts_of(self, rows: Mapping[str, Rows]) -> None:
        """Refuse a model, once it is loaded, whose chat template asks other than a stored base."""
        if self.executor.chat:
            self._asked.update(read_asked_prompts(rows, self.executor.tasks.names))

    def with_executor(self, executor: Executor) -> RunContext:
        """The same models, scored by another executor and compared with one another anew."""
        return replace(self, executor=executor, _descriptions=[], _asked={})

    @contextmanager
    def open_model(self, source: ModelSource) -> Iterator[LoadedModel]:
        """Load a model; release it in the end.

        Raises:
            EvaluationError: if it cannot be loaded; MisalignedRunsError if it reads other tokens.
            UsageError: for clusters that no document has.
        """
        self._waiting[:] = [waiting for waiting in self._waiting if waiting is not source]
        model = self.load(source)
        try:
            self._check_clusters(model.scorer)
            self._check_fair(model.scorer)
            self._probe(model)
            self._warm_up(model)
            yield model
            self._note_unloaded(source, model.scorer)
        finally:
            model.scorer.close()

    @contextmanager
    def open_models(self, sources: Sequence[ModelSource]) -> Iterator[tuple[LoadedModel, ...]]:
        """Load several models, so that all are there at the same time."""
        with ExitStack() as stack:
            yield tuple(stack.enter_context(self.open_model(source)) for source in sources)

    def open_clients(self, sources: Sequence[ModelSource]) -> None:
        """Refuse a server that cannot do what is needed before a model ahead of it is scored.

        The client stays open until its turn: what was probed is not asked again.

        Raises:
            UsageError, EvaluationError: as opening the model does.
        """
        computes = False  # a model before this one takes long
        for source in sources:
            if not (asks_server(source.variant) and source.variant.serve is None):
                computes = True
            elif computes:
                client = self._open(source, source.policy or self.choices.policy)
                self._clients[source.name] = client
                self._probe(LoadedModel(source.name, client))

    def close_clients(self) -> None:
        """Close the clients whose turn did not come."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _note_unloaded(self, source: ModelSource, scorer: Scorer) -> None:
        if isinstance(scorer, LazyScorer) and scorer.from_cache and not scorer.is_loaded:
            blocks = len(scorer.from_cache)
            self.executor.progress.note(f"{source.name}: all {blocks:,} blocks kept, not loaded")

    def _check_clusters(self, scorer: Scorer) -> None:
        """Refuse a field that no document has before anything is scored, not after."""
        if self._descriptions or not self.choices.clusters.declared:
            return
        with interruptible("building the requests"):
            names = self.executor.tasks.names
            fields = {task: self.executor.requests(task, scorer).fields for task in names}
        check_clusters(self.choices.clusters, fields)

    def _check_fair(self, scorer: Scorer) -> None:
        """Compare this model's prompts and tokenizer with the first one's, unless they may differ.

        A setting such as add_bos_token is meant to change token ids, not what they stand for:
        different vocabularies have to be declared.
        """
        description = scorer.describe()
        allow, chat = self.choices.allow, self.executor.chat
        if "tokens" not in self.choices.declared:
            for before in self._descriptions[:1]:
                check_vocabularies(before, description)
        if not (chat and allow >= {"prompt", "tokens"}):  # who may differ in all is not looked at
            with interruptible("building the requests"):
                self._check_requests(scorer)
        self._descriptions.append(description)

    def check_waiting(self) -> None:
        """Refuse, before the first model is scored, one whose tokenizer alone shows another's ids.

        What opening it refuses, and no more: as far as its tokenizer can be had without it.

        Raises:
            MisalignedRunsError: as opening the model does.
        """
        if not self._descriptions:
            return
        while self._waiting:
            source = self._waiting.pop(0)
            with interruptible(f"reading the tokenizer of {source.name}"):
                client = self._clients.get(source.name)
                if client is not None:
                    self._check_fair_ahead(client.describe(), client.encode)
                    continue
                tokenizer = read_tokenizer(source.variant, source.policy or self.choices.policy)
            if tokenizer is None:
                continue
            description = replace(
                self._descriptions[0],
                vocabulary_digest=tokenizer.digest,
                vocabulary_size=tokenizer.size,
            )
            self._check_fair_ahead(description, tokenizer.encode, tokenizer.pieces)

    def _check_fair_ahead(
        self,
        description: ModelDescription,
        encode: Encode | None,
        pieces: Mapping[int, str | None] | None = None,
    ) -> None:
        if "tokens" not in self.choices.declared:
            check_vocabularies(self._descriptions[0], description)
        if self.executor.chat or "tokens" in self.choices.allow:
            return
        requests = self._sample(self._opened[0])
        asked = [self._asked.get(place_of(request)) for request in requests]
        ids = [() if prompt is None else prompt.ids for prompt in asked]
        if encode is not None:
            check_encodings(requests, ids, encode(requests))
        elif pieces is not None:
            check_pieces(requests, ids, pieces)

    def _check_requests(self, scorer: Scorer) -> None:
        """Compare what this model is asked, and the token ids of it, with the first one's."""
        allow, requests = self.choices.allow, self._sample(scorer)
        if self.executor.chat and "prompt" not in allow:
            refuse_other_prompts(self._asked, requests)
        may_differ = "tokens" in allow
        if may_differ and isinstance(scorer, LazyScorer):
            encoded = scorer.known_ids(requests)
        else:
            encoded = scorer.encode(requests)
        known = [self._asked.get(place_of(request)) for request in requests]
        before = [
            prompt.ids if prompt is not None and prompt.prompt == prompt_of(request) else ()
            for prompt, request in zip(known, requests, strict=True)
        ]
        if may_differ:
            findings = find_other_encodings(requests, before, encoded)
            self.executor.beforehand += [
                of for of in findings if of not in self.executor.beforehand
            ]
        else:
            check_encodings(requests, before, encoded)
        if not self._descriptions:
            for request, ids in zip(requests, encoded, strict=True):
                self._asked[place_of(request)] = AskedPrompt(prompt=prompt_of(request), ids=ids)

    def _probe(self, model: LoadedModel) -> None:
        """Refuse a server that cannot do what the tasks need, and of which not all is cached."""
        served = served_scorer(model.scorer)
        if served is None:
            return
        with interruptible("asking the server what it gives"):
            kinds = self.executor.kinds_to_ask(model)
            blocks = self.executor.first_blocks(model.scorer, _ENCODED_DOCUMENTS) if kinds else []
            requests = [
                request for block in blocks if block.kind in kinds for request in block.requests
            ]
            served.probe(requests)

    def _warm_up(self, model: LoadedModel) -> None:
        """Be done with what is slow only once: kernels, threads, caches of a processor.

        A server runs already, and what it was asked it would answer from its prefix cache.
        """
        meter = self.executor.meter
        if not meter.steady or served_scorer(model.scorer) is not None:
            return
        with interruptible(f"warming up {model.name}"), meter.phase("loading", (model.name,)):
            for block in self.executor.first_blocks(model.scorer, _WARMING_DOCUMENTS):
                model.scorer.score(block.requests)

    def _sample(self, scorer: Scorer) -> list[Request]:
        """The first requests of every task; as this model is asked them."""
        blocks = self.executor.first_blocks(scorer, _ENCODED_DOCUMENTS)
        return [request for block in blocks for request in block.requests]

    def load(self, source: ModelSource) -> LoadedModel:
        """Load a model, or put that off where all about it is known; the caller closes it.

        Raises:
            EvalguardError: as loading does, with the place in the guard file where that is known.
            FallbackError: it cannot be scored as the models before it, or as is asked, which an
                earlier run has found.
        """
        before = [opened.describe() for opened in self._opened]
        policy = policy_after(source.policy or self.choices.policy, before)
        known = self._known(source, policy)
        if known is not None and known.gave_up is not None:
            raise known.gave_up
        scorer = self._open(source, policy) if known is None else self._lazy(source, policy, known)
        try:
            check_same_policy(source.name, scorer.describe(), before)
        except FallbackError:
            scorer.close()
            raise
        self.match_batches_of(scorer)
        return LoadedModel(source.name, scorer, replace(source, policy=policy))

    def load_apart(self, source: ModelSource) -> Scorer:
        """Load a model that need not be scored as the others; the caller closes it.

        Raises:
            EvalguardError: as loading does.
        """
        return self._open(source, source.policy or self.choices.policy)

    def _open(self, source: ModelSource, policy: ScoringPolicy) -> Scorer:
        client = self._clients.pop(source.name, None)
        if client is not None:
            return client
        self._check_unloaded()
        self.executor.progress.note(f"loading {source.name}")
        loading = self.executor.meter.phase("loading", (source.name,))
        with interruptible(f"loading {source.name}"), with_location(source), loading:
            try:
                scorer = open_scorer(source.variant, policy, self.options, cache_dir=self.cache_dir)
            except WorkerError as error:
                if self.executor.slots is None or error.cause != "unplaced":
                    raise
                self.executor.slots.close()  # they have the places that are left of a cluster
                scorer = open_scorer(source.variant, policy, self.options, cache_dir=self.cache_dir)
        if isinstance(scorer, LMScorer):
            scorer.show_top_tokens(self.shown_tokens)
        self.executor.meter.loaded(scorer)
        self._keep_answers(source, scorer)
        return scorer

    def _keep_answers(self, source: ModelSource, scorer: Scorer) -> None:
        """Let a served model's answers outlive this process, until the run is finished.

        Where nobody vouches for the server, they are for the same model of the same command.
        """
        asked = served_scorer(scorer)
        if asked is None or asked.served is None:
            return
        serve = source.variant.serve
        # Of a server that is started for the run, the port is another one each time.
        where = asked.served.url if serve is None else serve.declared
        self._check_address(source, asked, str(where))
        served = asked.served
        if self.executor.kept is None:
            return  # a model that is to be asked once more is asked
        if runs_other_code() and not has_own_process(source.variant):
            return  # what encodes its texts may be another's doing
        own = [] if served.revision else [source.name, where]
        key = digest_of([dict(served.identity), *own])
        path = self.cache_dir / ANSWERS_FOLDER / f"{key}{ANSWERS_SUFFIX}"
        journal = self._answers.get(path)
        if journal is None:
            journal = AnswerFile(path, facts=served.facts, revision=served.revision)
            self._answers[path] = journal
            self._say_problems(source.name, journal)
            if journal.found:
                self.executor.progress.note(
                    f"{source.name}: {journal.found:,} answers of an interrupted run are used"
                )
        asked.keep_answers(journal)

    def _check_address(self, source: ModelSource, asked: AheadScorer, where: str) -> None:
        """Share nothing of two addresses under one revision: one of them may be another model."""
        served = asked.served
        if served is None or not served.revision:
            return
        key = digest_of(dict(served.identity))
        where = where.replace("//localhost", "//127.0.0.1")
        first = _addresses_of_run().setdefault(key, (source.name, where))
        if first[1] == where:
            return
        asked.keep_for_itself(
            Finding(
                kind="one_revision",
                text=f"{first[0]} ({first[1]}) and {source.name} ({where}) stand under one "
                f"revision, '{served.revision}', at two addresses: nothing of them is shared, and "
                f"no score of {source.name} is kept",
                values={"revision": served.revision, "addresses": (first[1], where)},
            )
        )

    def _say_problems(self, name: str, journal: AnswerFile) -> None:
        while journal.problems:
            problem = journal.problems.pop(0)
            self.executor.progress.note(f"{name}: {problem}" if name else problem)

    def close_answers(self, *, finished: bool) -> None:
        """Close what served models' answers are kept in; remove it where the run is finished."""
        for journal in self._answers.values():
            if finished:
                journal.finish()
            else:
                journal.close()
            self._say_problems("", journal)
        self._answers.clear()

    def _known(self, source: ModelSource, policy: ScoringPolicy) -> KnownModel | None:
        if self.known is None:
            return None
        if source.variant.build is not None:
            self.executor.progress.note(f"building {source.name}, unless that is done")
        with interruptible(f"reading the files of {source.name}"), with_location(source):
            worker = needs_worker(source.variant, self.options)
            known = self.known.of(source.variant, policy, worker=worker)
        if known is not None and known.unfinished:
            self.executor.progress.note(
                f"{source.name}: scores of a run that has not finished are kept: --unchanged-since "
                f"{' or '.join(known.unfinished)} goes on from them, if nothing that its code "
                "reads has changed"
            )
        return known

    def check_asked(self, sources: Sequence[ModelSource]) -> None:
        """Refuse a task that a model's type cannot answer, before another model is scored on it.

        What loading any of them would refuse is looked for once the first one has to be loaded.

        Raises:
            UsageError: naming the task and the type.
        """
        for task in self.executor.tasks.of_likelihoods[:1]:
            for source in sources:
                arguments = source.variant.model_args
                model = arguments.get("model") or arguments.get("pretrained") or ""
                with with_location(source):
                    check_shows_likelihoods(source.variant.model, str(model), task)
        self._unchecked[:] = sources
        self._waiting[:] = sources

    def _check_unloaded(self) -> None:
        """Refuse all that loading these models would refuse without reading their weights."""
        while self._unchecked:
            source = self._unchecked.pop(0)
            variant = source.variant
            # What a recipe builds is not there yet; another environment has other libraries.
            if not shares_prefixes(variant) or variant.build is not None:
                continue
            plan = plan_conversion(variant)
            if "pretrained" not in plan.model_args:
                continue  # refused before, where models are loaded by their arguments
            with with_location(source):
                check_unloaded(
                    plan.model_args,
                    plan.config_overrides,
                    source.policy or self.choices.policy,
                    trust_remote_code=variant.trust_remote_code,
                    allow_pickle=variant.allow_pickle,
                    elsewhere=bool(self.options.execution),
                )

    def say_what_is_scored_anew(self, sources: Sequence[ModelSource]) -> None:
        """Say once which models are scored by every run, and what would keep their scores."""
        if self.known is None:
            return
        names = frozenset(source.name for source in sources)
        text = scored_anew([source.variant for source in sources])
        if text and not names <= _named:
            _named.update(names)
            self.executor.progress.note(text)

    def _lazy(self, source: ModelSource, policy: ScoringPolicy, known: KnownModel) -> Scorer:
        here = not needs_worker(source.variant, self.options)
        description = known.description
        budget = description.computation.get("token_budget") if description is not None else None
        # Smaller than what is asked for where memory ran out: it would again.
        same = replace(policy, token_budget=budget) if isinstance(budget, int) else policy
        scorer = LazyScorer(source.name, known, lambda: self._open(source, same), here=here)
        for problem in known.facts.problems:
            self.executor.progress.note(problem)
        known.facts.problems.clear()
        return scorer

    def match_batches_of(self, scorer: Scorer) -> None:
        """Let every model that is loaded from now on have this one's batches."""
        self._opened.append(scorer)


def scored_anew(variants: Sequence[Variant]) -> str:
    """Which of these are scored or built by every run, and how that would end; "" where none."""
    scored = {
        variant.name: variant
        for variant in variants
        if variant.inputs is None
        and not asks_server(variant)
        and runs_foreign_code(variant, plan_conversion(variant))
    }
    built = {variant.name: variant for variant in variants if is_built_by_every_run(variant)}
    if not scored and not built:
        return ""
    first = next(iter([*scored, *built]))
    every = [*(["scored"] if scored else []), *(["built"] if built else [])]
    return (
        f"{', '.join({**scored, **built})}: {' and '.join(every)} anew by every run, since nobody "
        f"knows what code of others reads. To keep it, write 'inputs: []' below {first} in the "
        "guard file, with the files that the code reads in the brackets"
    )


# One command opens several contexts.
_named: set[str] = set()
# By the run's token, and by what a vouched server is: whose it was first, and where.
_addresses: dict[str, dict[str, tuple[str, str]]] = {}


def _addresses_of_run() -> dict[str, tuple[str, str]]:
    """What all contexts of a run have seen: each candidate of one base is scored in its own."""
    if current_run() not in _addresses:
        _addresses.clear()
    return _addresses.setdefault(current_run(), {})


@contextmanager
def open_run_context(
    choices: Choices,
    options: CompareOptions,
    *,
    meter: Meter | None = None,
    shown_tokens: int = 0,
) -> Iterator[RunContext]:
    """Load the tasks, and open score cache and progress for a run.

    Args:
        meter: counts what this takes.
        shown_tokens: as of the context.

    Raises:
        UsageError, EvaluationError, Interrupted: as loading tasks does.
    """
    cache_dir = open_cache_dir(options.cache_dir)
    # Before tasks and models bring in libraries, which set variables of their own.
    known = KnownModels.kept_in(cache_dir) if options.use_cache else None
    with ProgressLine(quiet=options.quiet) as progress, ExitStack() as stack:
        stack.enter_context(keep_servers(MemoryPolicy(choices.memory).servers))
        stack.callback(clear_shared_texts)
        if known is not None:
            stack.callback(known.left)
        names = ", ".join(choices.tasks)
        progress.note(f"loading tasks: {names}")
        with interruptible(f"loading tasks ({names})"):
            tasks = load_tasks(choices.tasks, options=choices.task_options)
        note_task_code(tasks.executed)
        meter = meter or Meter()
        meter.start_over()
        slots = ClusterSlots(options, cache_dir, progress.note) if options.execution else None
        if slots is not None:
            stack.callback(slots.close)
        executor = Executor(
            tasks=tasks,
            kept=cache_dir if options.use_cache else None,
            progress=progress,
            chat=bool(choices.task_options.apply_chat_template),
            meter=meter,
            scoring=TaskScoring(
                documents=options.verify_scorer,
                seed=choices.task_options.seed,
                figures=choices.gate.figure_names,
                expected=choices.answers,
            ),
            slots=slots,
            show_tokens=shown_tokens > 0,
        )
        stack.callback(executor.close)
        context = RunContext(
            executor=executor,
            choices=choices,
            options=options,
            cache_dir=cache_dir,
            known=known,
            shown_tokens=shown_tokens,
        )
        stack.callback(context.close_clients)
        try:
            yield context
        except BaseException:
            context.close_answers(finished=False)
            raise
        context.close_answers(finished=True)
        if known is not None:
            known.finish()
            if keeps_for_itself():
                forget_old_runs(cache_dir)
        if options.use_cache:
            limit_cache(choices.cache_max_size, cache_dir, progress.note, since=meter.began())


@dataclass(slots=True)
class LoadedModels:
    """The models of a run that asks them several times.

    Attributes:
        open: those that stay in memory; empty where the models take turns.
    """

    context: RunContext
    models: Sequence[ModelSource]
    open: list[LoadedModel]
    _released: int = 0

    @property
    def taking_turns(self) -> bool:
        """Whether only one model is in memory at a time."""
        return not self.open

    @property
    def loads(self) -> int:
        """How often a model was loaded so far; one whose answers are all kept is not."""
        return self._released + sum(is_loaded(model.scorer) for model in self.open)

    def each(self, beside: Sequence[PerModel]) -> Iterator[tuple[PerModel, LoadedModel]]:
        """Every model while it is loaded, with what belongs to it."""
        if self.open:
            yield from zip(beside, self.open, strict=True)
            return
        for source, own in zip(self.models, beside, strict=True):
            with self.context.open_model(source) as model:
                yield own, model
                self._released += is_loaded(model.scorer)

    def take_turns(self) -> None:
        """Let no model stay in memory; those that are open have been released."""
        self._released = self.loads
        self.open.clear()


@contextmanager
def load_together(context: RunContext, models: Sequence[ModelSource]) -> Iterator[LoadedModels]:
    """Load one or two models; where the second is not to be beside the first, none stays."""
    with ExitStack() as stack:
        first = stack.enter_context(context.open_model(models[0]))
        loaded = LoadedModels(context, models, [first])
        if len(models) > 1 and context.holds_beside(first, models[1]):
            loaded.open.append(stack.enter_context(context.open_model(models[1])))
        elif len(models) > 1:
            stack.close()
            loaded.take_turns()
        yield loaded
