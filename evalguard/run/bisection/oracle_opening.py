"""Opens an oracle over a model: tasks, caches and workers, all closed when it is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from evalguard.bisect.blocks import changed_apart
from evalguard.core.answer_figures import FIGURES
from evalguard.core.document_scale import DocumentScale
from evalguard.core.figure_scale import FigureScale
from evalguard.core.gate_state import Key
from evalguard.core.limit_scale import LimitScale
from evalguard.core.score_rows import pick_rows
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import digest_of
from evalguard.errors import EvaluationError, UsageError
from evalguard.harness.figure_tables import answers_by_document
from evalguard.harness.request_blocks import RequestBlock
from evalguard.run.bisection.assigned_candidate import AssignedCandidate
from evalguard.run.bisection.base_for_probes import collect_base_references
from evalguard.run.bisection.block_scoring import (
    DocumentBlock,
    join_document_blocks,
)
from evalguard.run.bisection.compared_ends import adopt_compared_ends
from evalguard.run.bisection.document_parts import find_document_parts
from evalguard.run.bisection.early_ends import EarlyEnds
from evalguard.run.bisection.failure_streak import FailureStreak
from evalguard.run.bisection.model_oracle import ModelOracle
from evalguard.run.bisection.probe_context import ProbeContext
from evalguard.run.bisection.probe_records import ProbeRecords
from evalguard.run.bisection.probes import Probes
from evalguard.run.bisection.questions import BlockScoring
from evalguard.run.bisection.settings_oracle import (
    OracleContext,
    OracleRequest,
    SearchedLimit,
    SearchScale,
)
from evalguard.run.bisection.written_texts import are_drawn
from evalguard.run.cache_limit import limit_cache
from evalguard.run.executing.reused_model import ReusedModel
from evalguard.run.executing.work import WorkRunner
from evalguard.run.executing.worker_pool import WorkerPool
from evalguard.run.loading.own_environment import asks_server
from evalguard.run.meter import Meter
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.worker.ray_cluster import open_cluster
from evalguard.worker.ray_plan import RayPlan


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
        place = ProbeContext.opened(inquiry, surroundings, stack)
        workers = runner or _worker_pool(place, jobs, surroundings.say)
        stack.callback(workers.close)
        reference = place.assigned({one.name: one.reference for one in place.declared})
        rows = _searched_rows(tables, inquiry.held_to)
        asking, as_compared = _block_scoring(place, reference, inquiry.scored, rows, workers)
        if inquiry.held_to is not None and isinstance(inquiry.held_to.scale, FigureScale):
            seed = surroundings.choices.task_options.seed
            _set_figure(inquiry.held_to.scale, inquiry, tables, asking, seed=seed)
            if not are_drawn(inquiry.scored[1], inquiry.held_to.scale):
                as_compared = True  # in other batches, at worst; nobody writes both ends once more
        elif inquiry.held_to is not None:
            _set_limit(inquiry.held_to, place, asking, workers, stack)
        scale = _searched_scale(inquiry.held_to, tables, _population(place, reference))
        oracle = _build_oracle(place, reference, scale, workers, asking)
        adopt_compared_ends(
            oracle, reference, place, inquiry.scored, tables, as_compared=as_compared
        )
        _expect_times(oracle, inquiry, surroundings.meter)
        yield oracle
        if options.use_cache:
            limit = surroundings.choices.cache_max_size
            limit_cache(limit, place.cache_dir, surroundings.say, since=began)


def _searched_tables(inquiry: OracleRequest) -> tuple[ScoreTable, ScoreTable] | None:
    """Both sides' scores of a metric or figure; None of a limit."""
    if inquiry.held_to is not None:
        scale = inquiry.held_to.scale
        if not isinstance(scale, FigureScale):
            return None
        ours, theirs = (_known_rows(_table(side, inquiry.key), scale) for side in inquiry.scored)
        return ours, theirs
    base, candidate = inquiry.scored
    found = _table(base, inquiry.key), _table(candidate, inquiry.key)
    DocumentScale.of(found[0])  # refused now, not after the task was loaded
    return found


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
        return [int(one) for one in tables[0].doc_ids]
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
    evaluator = place.evaluator
    asking = BlockScoring(evaluator=evaluator, key=place.key, rows=rows)
    if place.choices.sequential_alpha is None:
        return asking, True
    requests = asking.requests(reference, runner)
    parts = find_document_parts(
        requests,
        evaluator.blocks,
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
    return place.evaluator.store.scores.holds(key, block.digest)


def _build_oracle(
    place: ProbeContext,
    reference: AssignedCandidate,
    scale: SearchScale,
    runner: WorkRunner,
    asking: BlockScoring,
) -> ModelOracle:
    evaluator, rows = place.evaluator, asking.rows
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
            store=evaluator.store,
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
    found = next((table for table in side.tables if table.key == key), None)
    if found is None:
        raise UsageError(
            f"{side.identity.name} has no scores of {key[0]} ({key[1]}) {key[2]}",
            hint="a group of tasks is searched by one of its tasks",
        )
    return found


def _question(asking: BlockScoring, blocks: Sequence[DocumentBlock]) -> str:
    """Digest of what assignments are asked: the documents, the metric, and the base beside it."""
    beside = "" if asking.beside is None else asking.beside.name
    return digest_of([list(asking.key), [block.digest for block in blocks], beside])
