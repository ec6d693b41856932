"""Opens an oracle over a model: tasks, caches and workers, all closed when it is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from evalguard.answers.figure_tables import answers_by_document
from evalguard.bisect.oracle.assigned_candidate import (
    AssignedCandidate,
    CutBlocks,
    DocumentBlock,
    DocumentParts,
    cut_as_compared,
    inert_by_readback,
    join_document_blocks,
    same_model,
)
from evalguard.bisect.oracle.model_oracle import ModelOracle
from evalguard.bisect.oracle.probe_answers import BlockScoring, EarlyEnds, ProbeContext
from evalguard.bisect.oracle.probes import FailureStreak, ProbeRecords, Probes, are_drawn
from evalguard.bisect.oracle.settings_oracle import (
    OracleContext,
    OracleRequest,
    SearchedLimit,
    SearchScale,
)
from evalguard.bisect.scales import FigureScale, LimitScale
from evalguard.bisect.search.block_estimates import changed_apart
from evalguard.comparison.looks import TURN_GROWTH
from evalguard.core.document_scale import DocumentScale
from evalguard.core.figures import FIGURES
from evalguard.core.gate_state import Key
from evalguard.core.pairing import pick_rows
from evalguard.core.ray_plan import RayPlan
from evalguard.core.scorer import ModelDescription, Scorer
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import digest_of
from evalguard.engine.answer import score_unit
from evalguard.engine.batches import uses_batches_of
from evalguard.engine.block_store import BaseReferences, Unit
from evalguard.engine.loading.own_environment import asks_server
from evalguard.engine.meter import Meter
from evalguard.engine.reused_model import ReusedModel
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.slots import WorkerPool, WorkRunner
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvalguardError, EvaluationError, UsageError
from evalguard.harness.request_blocks import RequestBlock
from evalguard.harness.requests import TaskRequests
from evalguard.stats.sequential_looks import FACTOR, document_order, planned_looks
from evalguard.store.cache_folder import limit_cache
from evalguard.worker.ray_cluster import open_cluster


def collect_base_references(
    held_to: SearchedLimit,
    place: ProbeContext,
    asking: BlockScoring,
    runner: WorkRunner,
    stack: ExitStack,
) -> BaseReferences:
    """Have the base leave its most probable tokens, block by block; those that are kept stand.

    Args:
        asking: how the task is asked.
        stack: ends with the search, and with it what nothing would recognise later.

    Raises:
        EvalguardError: the base cannot be loaded, or shows no distributions.
    """
    if not isinstance(held_to.base, ModelSource):
        raise EvaluationError(f"the model of '{held_to.base.name}' is not at hand")
    base = place.identified(replace(held_to.base, policy=place.policy))
    blocks = asking.cut(base, runner)

    def referenced(key: str | None) -> BaseReferences:
        folder = _reference_folder(key, place, stack)
        top_k = place.choices.distributions.top_k
        return place.executor.store.references_of(key, top_k=top_k, folder=folder)

    def made(scorer: Scorer) -> BaseReferences:
        if not scorer.describe().gives_rows:
            raise EvaluationError(f"{base.source.name} shows no distributions")
        base.describe_as(scorer.describe())
        references = referenced(base.key if place.kept is not None else None)
        for block in blocks:
            if references.known(block) is None:
                answer = score_unit(scorer, Unit(block=block, leaves=references))
                references.put(block, answer.references)
        return references

    if place.kept is not None and base.key is not None:
        recorded = referenced(base.key)
        if all(recorded.known(block) is not None for block in blocks):
            return recorded
    return runner.ask(base.source, made)


def _reference_folder(key: str | None, place: ProbeContext, stack: ExitStack) -> Path:
    if key is not None and place.kept is not None:
        return place.kept / "references"
    return Path(stack.enter_context(TemporaryDirectory(prefix="evalguard-references-")))


def adopt_compared_ends(
    oracle: ModelOracle,
    reference: AssignedCandidate,
    place: ProbeContext,
    scored: tuple[ScoredSide, ScoredSide],
    tables: tuple[ScoreTable, ScoreTable] | None,
    *,
    as_compared: bool,
) -> None:
    """See which settings are inert, and which ends of the search the comparison has scored.

    Args:
        reference: the candidate with all its settings at reference.
        tables: of the searched metric; None of a limit, on which the base is at 0 and the candidate
            is measured, as probes are.
        as_compared: whether the oracle's blocks are those of the comparison; batches depend on
            them.

    Raises:
        EvaluationError: it cannot be loaded.
    """
    described = reference.description or _describe_reference(reference, oracle.probes)
    if reference.description is None:
        reference.describe_as(described)
    base, candidate = scored[0].description, scored[1].description
    if candidate is not None:
        oracle.inert_by_readback = inert_by_readback(oracle.declared, described, candidate)
    oracle.reference_is_base = same_model(base, described)
    if tables is None:
        if oracle.reference_is_base and uses_batches_of(place.policy, described):
            oracle.stands_for(frozenset(), np.zeros(oracle.n_documents))
        return
    ends = [
        (frozenset[str](), base if oracle.reference_is_base else None, tables[0]),
        (frozenset(oracle.settings), candidate, tables[1]),
    ]
    for names, description, table in ends:
        if description is None or not uses_batches_of(place.policy, description):
            continue
        same = table.doc_ids.tolist() == tables[0].doc_ids.tolist()
        if as_compared and same and np.isfinite(table.values).all():
            oracle.stands_for(names, oracle.scale.scores(table.values))


def _describe_reference(reference: AssignedCandidate, probes: Probes) -> ModelDescription:
    started = time.monotonic()
    try:
        description = probes.runner.ask(reference.source, lambda scorer: scorer.describe())
    except EvalguardError as error:
        raise EvaluationError(
            f"{reference.source.name} cannot be loaded with all settings at reference, so that "
            f"there is nothing to start from: {error}",
            hint=error.hint,
        ) from error
    probes.loading_seconds += time.monotonic() - started
    probes.loads += 1
    return description


def find_document_parts(
    requests: TaskRequests,
    cut: CutBlocks,
    doc_ids: Sequence[int],
    *,
    seed: int,
    is_kept: Callable[[RequestBlock], bool],
) -> DocumentParts | None:
    """Find out in which parts a run that may have stopped early asked its documents.

    How far it got is in its scores; of the looks that may have led there, those were taken whose
    blocks are all kept.

    Args:
        doc_ids: that were scored in the end.
        seed: of the documents' order.
        is_kept: whether the answers of one of the compared models to a block are kept.

    Returns:
        The parts, () for all documents at once; None where nothing proves any.
    """
    for parts in _possible_parts(requests, frozenset(doc_ids), seed):
        if all(is_kept(block) for block in cut_as_compared(requests, cut, parts)):
            return parts
    return None


def _possible_parts(
    requests: TaskRequests, scored: frozenset[int], seed: int
) -> Iterator[DocumentParts]:
    order = document_order(requests.doc_ids, task=requests.task, seed=seed)
    if len(scored) == len(order):
        yield ()
    for factor in (FACTOR, TURN_GROWTH):
        looks = planned_looks(len(order), factor=factor)
        # From any look on, all that is left may have been asked at once.
        reached = [looks[:at] for at in range(1, len(looks) + 1)]
        for ends in [*reached, *((*before, len(order)) for before in ((), *reached))]:
            if frozenset(order[: ends[-1]]) == scored:
                yield _split_documents(order, ends)


def _split_documents(order: Sequence[int], ends: Sequence[int]) -> DocumentParts:
    return [order[start:end] for start, end in zip((0, *ends), ends, strict=False) if start < end]


@contextmanager
def open_model_oracle(
    inquiry: OracleRequest, surroundings: OracleContext, *, runner: WorkRunner | None = None
) -> Iterator[ModelOracle]:
    """Open an oracle over a candidate's settings; every process that it started ends with it.

    Documents, prompts, batches and blocks are those of the comparison, and so are the places in the
    score cache: what was scored before, under any assignment, is not scored again.

    Args:
        runner: runs probes elsewhere.

    Raises:
        UsageError: the metric is not a sum over documents, or was not compared.
        EvaluationError: the model with all settings at reference cannot be loaded.
    """
    jobs, options = surroundings.jobs, surroundings.options
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}", hint="give --jobs 1 or more")
    began = (surroundings.meter or Meter()).began()
    tables = _searched_tables(inquiry)
    with ExitStack() as stack:
        context = ProbeContext.opened(inquiry, surroundings, stack)
        workers = runner or _worker_pool(context, jobs, surroundings.say)
        stack.callback(workers.close)
        reference = context.assigned(
            {setting.name: setting.reference for setting in context.declared}
        )
        rows = _searched_rows(tables, inquiry.held_to)
        asking, as_compared = _block_scoring(context, reference, inquiry.scored, rows, workers)
        if inquiry.held_to is not None and isinstance(inquiry.held_to.scale, FigureScale):
            seed = surroundings.choices.task_options.seed
            _set_figure(inquiry.held_to.scale, inquiry, tables, asking, seed=seed)
            if not are_drawn(inquiry.scored[1], inquiry.held_to.scale):
                as_compared = True  # in other batches, at worst; nobody writes both ends once more
        elif inquiry.held_to is not None:
            _set_limit(inquiry.held_to, context, asking, workers, stack)
        scale = _searched_scale(inquiry.held_to, tables, _population(context, reference))
        oracle = _build_oracle(context, reference, scale, workers, asking)
        adopt_compared_ends(
            oracle, reference, context, inquiry.scored, tables, as_compared=as_compared
        )
        _expect_times(oracle, inquiry, surroundings.meter)
        yield oracle
        if options.use_cache:
            limit = surroundings.choices.cache_max_size
            limit_cache(limit, context.cache_dir, surroundings.say, since=began)


def _searched_tables(inquiry: OracleRequest) -> tuple[ScoreTable, ScoreTable] | None:
    """Both sides' scores of a metric or figure; None of a limit."""
    if inquiry.held_to is not None:
        scale = inquiry.held_to.scale
        if not isinstance(scale, FigureScale):
            return None
        ours, theirs = (_known_rows(_table(side, inquiry.key), scale) for side in inquiry.scored)
        return ours, theirs
    base, candidate = inquiry.scored
    tables = _table(base, inquiry.key), _table(candidate, inquiry.key)
    DocumentScale.of(tables[0])  # refused now, not after the task was loaded
    return tables


def _known_rows(table: ScoreTable, scale: FigureScale) -> ScoreTable:
    """The rows of a figure's table that are searched."""
    return pick_rows(table, np.flatnonzero(np.isin(table.doc_ids, scale.doc_ids)))


def _set_figure(
    scale: FigureScale,
    inquiry: OracleRequest,
    tables: tuple[ScoreTable, ScoreTable] | None,
    asking: BlockScoring,
    *,
    seed: int,
) -> None:
    """Ask for a figure: first what the candidate changes, and no text longer than it takes.

    Texts that are drawn at random are asked for whole, in the comparison's blocks: a block has one
    seed, so that the same settings write the same texts there, and nowhere else.
    """
    task, _, figure = inquiry.key
    samples = inquiry.scored[0].samples
    base = answers_by_document(task, samples[task].samples) if task in samples else {}
    asking.limit = scale
    asking.base_answers = base if FIGURES[figure].paired else {}
    if are_drawn(inquiry.scored[1], scale):
        return
    asking.early_ends = EarlyEnds.for_figure(figure, inquiry.candidate, base)
    if tables is not None:
        ours, theirs = (scale.values(table) for table in tables)
        mixed = np.random.default_rng(seed).permutation(ours.size)
        order = mixed[np.argsort(ours[mixed] == theirs[mixed], kind="stable")]
        parts = changed_apart(order, int(np.count_nonzero(ours != theirs)))
        asking.parts = [[scale.doc_ids[at] for at in part] for part in parts if part.size]


def _searched_rows(
    tables: tuple[ScoreTable, ScoreTable] | None, held_to: SearchedLimit | None
) -> list[int]:
    """doc_ids of the documents that are searched."""
    if tables is not None:
        return [int(doc_id) for doc_id in tables[0].doc_ids]
    return [] if held_to is None else list(held_to.scale.doc_ids)


def _searched_scale(
    held_to: SearchedLimit | None, tables: tuple[ScoreTable, ScoreTable] | None, population: int
) -> SearchScale:
    if held_to is not None:
        return held_to.scale
    assert tables is not None
    return DocumentScale.of(tables[0], population=population)


def _set_limit(
    held_to: SearchedLimit,
    place: ProbeContext,
    asking: BlockScoring,
    runner: WorkRunner,
    stack: ExitStack,
) -> None:
    """Ask for a limit's figure; of distributions, beside what the base leaves of them."""
    asking.limit = held_to.scale
    if isinstance(held_to.scale, LimitScale):
        asking.beside = collect_base_references(held_to, place, asking, runner, stack)


def _expect_times(oracle: ModelOracle, inquiry: OracleRequest, meter: Meter | None) -> None:
    """Expect models to take as long as they took in the comparison."""
    if meter is not None:
        name, task = inquiry.candidate.name, inquiry.key[0]
        oracle.expected_load = meter.seconds_per_load()
        oracle.expected_document = meter.seconds_per_document(name, task) or 0.0


def _worker_pool(place: ProbeContext, jobs: int, say: Callable[[str], None]) -> WorkerPool:
    def opened() -> ReusedModel:
        return ReusedModel(place.policy, place.options, place.cache_dir)

    watch = place.options.timeout is None
    if not place.options.execution or asks_server(place.candidate.variant):
        return WorkerPool(opened, jobs=jobs, watch=watch, say=say)
    actors = open_cluster(RayPlan.parse(place.options.execution)).actors
    return WorkerPool(opened, jobs=max(jobs, actors), watch=watch, recovers=True, say=say)


def _block_scoring(
    place: ProbeContext,
    reference: AssignedCandidate,
    scored: tuple[ScoredSide, ScoredSide],
    rows: list[int],
    runner: WorkRunner,
) -> tuple[BlockScoring, bool]:
    """How documents are asked; and whether that is as the comparison asked them."""
    executor = place.executor
    asking = BlockScoring(executor=executor, key=place.key, rows=rows)
    if place.choices.sequential_alpha is None:
        return asking, True
    requests = asking.requests(reference, runner)
    parts = find_document_parts(
        requests,
        executor.blocks,
        rows,
        seed=place.choices.task_options.seed,
        is_kept=lambda block: any(_is_cached(place, side, block) for side in scored),
    )
    some = len(rows) < requests.n_documents
    asking.parts = parts if parts is not None else ([rows] if some else ())
    return asking, parts is not None


def _is_cached(place: ProbeContext, side: ScoredSide, block: RequestBlock) -> bool:
    identity = None if side.description is None else side.description.identity
    key = None if identity is None else digest_of(dict(identity))
    return place.executor.store.scores.holds(key, block.digest)


def _build_oracle(
    place: ProbeContext,
    reference: AssignedCandidate,
    scale: SearchScale,
    runner: WorkRunner,
    asking: BlockScoring,
) -> ModelOracle:
    executor, rows = place.executor, asking.rows
    blocks = asking.cut(reference, runner)
    cut = join_document_blocks(blocks, rows)
    if sum(block.documents.size for block in cut) != len(rows):
        raise EvaluationError(
            f"{place.key[0]}: the base was scored on {len(rows):,} documents, of which the task "
            f"has {sum(block.documents.size for block in cut):,} by now",
            hint="compare again: the task, or its data, changed since",
        )
    probes = Probes(
        asking=asking,
        runner=runner,
        records=ProbeRecords(
            store=executor.store,
            facts=place.facts,
            question=_question(asking, cut),
            timeout=place.options.timeout,
        ),
        policy=place.policy,
        suspicion=FailureStreak(control=place.candidate, block=blocks[cut[0].blocks[0]]),
    )
    return ModelOracle(
        candidate=place.candidate,
        scale=scale,
        declared=place.declared,
        document_blocks=cut,
        probes=probes,
        assigned_to=place.assigned,
    )


def _population(place: ProbeContext, reference: AssignedCandidate) -> int:
    """Documents that the comparison's sigma is about; 0: those that were scored."""
    early = place.choices.sequential_alpha is not None and reference.requests is not None
    return reference.requests.n_documents if early and reference.requests is not None else 0


def _table(side: ScoredSide, key: Key) -> ScoreTable:
    table = next((table for table in side.tables if table.key == key), None)
    if table is None:
        raise UsageError(
            f"{side.identity.name} has no scores of {key[0]} ({key[1]}) {key[2]}",
            hint="a group of tasks is searched by one of its tasks",
        )
    return table


def _question(asking: BlockScoring, blocks: Sequence[DocumentBlock]) -> str:
    """Digest of what assignments are asked: the documents, the metric, and the base beside it."""
    beside = "" if asking.beside is None else asking.beside.name
    return digest_of([list(asking.key), [block.digest for block in blocks], beside])
