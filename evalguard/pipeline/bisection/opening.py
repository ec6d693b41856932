"""Opening an oracle over a model: tasks, caches, journal and workers, gone when it is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import evalguard
from evalguard.document_scale import DocumentScale
from evalguard.errors import EvaluationError, UsageError
from evalguard.gate_reason import Key
from evalguard.harness import Block
from evalguard.limit_scale import LimitScale
from evalguard.pipeline.bisection.asked_parts import parts_as_compared
from evalguard.pipeline.bisection.asking import Asking
from evalguard.pipeline.bisection.assigned import Assigned
from evalguard.pipeline.bisection.base_references import base_references, beside
from evalguard.pipeline.bisection.document_blocks import document_blocks
from evalguard.pipeline.bisection.ends import settle_ends
from evalguard.pipeline.bisection.inquiry import HeldTo, Inquiry, Surroundings
from evalguard.pipeline.bisection.local_runner import LocalRunner
from evalguard.pipeline.bisection.model_oracle import ModelOracle
from evalguard.pipeline.bisection.open_oracle import Scale
from evalguard.pipeline.bisection.place import Place
from evalguard.pipeline.bisection.probes import Probes
from evalguard.pipeline.bisection.records import Records
from evalguard.pipeline.bisection.reused_model import ReusedModel
from evalguard.pipeline.bisection.roomy_runner import RoomyRunner
from evalguard.pipeline.bisection.runner import Runner
from evalguard.pipeline.bisection.suspicion import Suspicion
from evalguard.pipeline.cache_limit import keep_to
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.kept_blocks import KeptBlocks
from evalguard.pipeline.meter import Meter
from evalguard.pipeline.scored import Scored
from evalguard.scores import ScoreTable
from evalguard.settings import Value, digest_of
from evalguard.store import Journal


@contextmanager
def model_oracle(
    inquiry: Inquiry, surroundings: Surroundings, *, runner: Runner | None = None
) -> Iterator[ModelOracle]:
    """Open an oracle over a candidate's settings; every process that it started ends with it.

    Documents, prompts, batches and blocks are those of the comparison, and so are the places in the
    score cache: what was scored before, under any assignment, is not scored again.

    Args:
        runner: runs probes elsewhere.

    Raises:
        UsageError: the metric is no sum over documents, or was not compared.
        EvaluationError: the model with all settings at reference cannot be loaded.
        StoreError: the journal cannot be written, or another process writes it.
    """
    jobs, options = surroundings.jobs, surroundings.options
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}", hint="give --jobs 1 or more")
    began = (surroundings.meter or Meter()).began()
    tables = _tables(inquiry)
    with ExitStack() as stack:
        place = Place.opened(inquiry, surroundings, stack)
        workers = runner or RoomyRunner(lanes=_local(place, jobs), say=surroundings.say)
        stack.callback(workers.close)
        book = _journal(inquiry, surroundings, stack)
        reference = place.assigned({one.name: one.reference for one in place.declared})
        rows = _rows(tables, inquiry.held_to)
        asking, as_compared = _asking(place, reference, inquiry.scored, rows, workers)
        if inquiry.held_to is not None:
            _hold_to(inquiry.held_to, place, asking, workers, stack)
        scale = _scale(inquiry.held_to, tables, _population(place, reference))
        oracle = _oracle(place, reference, scale, workers, book, asking)
        settle_ends(oracle, reference, place, inquiry.scored, tables, as_compared=as_compared)
        _foresee(oracle, inquiry, surroundings.meter)
        yield oracle
        if options.use_cache:
            limit = surroundings.choices.cache_max_size
            keep_to(limit, place.cache_dir, surroundings.say, since=began)


def _tables(inquiry: Inquiry) -> tuple[ScoreTable, ScoreTable] | None:
    """Both sides' scores of a metric; None of a limit."""
    if inquiry.held_to is not None:
        return None
    base, candidate = inquiry.scored
    found = _table(base, inquiry.key), _table(candidate, inquiry.key)
    DocumentScale.of(found[0])  # refused now, not after the task was loaded
    return found


def _rows(tables: tuple[ScoreTable, ScoreTable] | None, held_to: HeldTo | None) -> list[int]:
    """doc_ids of the documents that are searched."""
    if tables is not None:
        return [int(one) for one in tables[0].doc_ids]
    return [] if held_to is None else list(held_to.scale.doc_ids)


def _scale(
    held_to: HeldTo | None, tables: tuple[ScoreTable, ScoreTable] | None, population: int
) -> Scale:
    if held_to is not None:
        return held_to.scale
    assert tables is not None
    return DocumentScale.of(tables[0], population=population)


def _hold_to(
    held_to: HeldTo, place: Place, asking: Asking, runner: Runner, stack: ExitStack
) -> None:
    """Ask for a limit's figure; of distributions, beside what the base leaves of them."""
    asking.limit = held_to.scale
    if isinstance(held_to.scale, LimitScale):
        left = base_references(held_to, place, asking, runner, stack)
        asking.beside = partial(beside, left)


def _journal(inquiry: Inquiry, surroundings: Surroundings, stack: ExitStack) -> Journal | None:
    if surroundings.journal is None:
        return None
    choices = surroundings.choices
    header = _header(inquiry.scored, choices)
    book = Journal.opened(surroundings.journal, header, search=_search(inquiry, choices))
    stack.callback(book.close)
    for problem in book.problems:
        surroundings.say(problem)
    return book


def _foresee(oracle: ModelOracle, inquiry: Inquiry, meter: Meter | None) -> None:
    """Expect models to take as long as they took in the comparison."""
    if meter is not None:
        name, task = inquiry.candidate.name, inquiry.key[0]
        oracle.expected_load = meter.seconds_per_load()
        oracle.expected_document = meter.seconds_per_document(name, task) or 0.0


def _local(place: Place, jobs: int) -> LocalRunner:
    def opened() -> ReusedModel:
        return ReusedModel(place.policy, place.options, place.cache_dir)

    return LocalRunner(opened, jobs=jobs, watch=place.options.timeout is None)


def _asking(
    place: Place,
    reference: Assigned,
    scored: tuple[Scored, Scored],
    rows: list[int],
    runner: Runner,
) -> tuple[Asking, bool]:
    """How documents are asked; and whether that is as the comparison asked them."""
    evaluator = place.evaluator
    asking = Asking(evaluator=evaluator, key=place.key, rows=rows)
    if place.choices.sequential_alpha is None:
        return asking, True
    requests = asking.requests(reference, runner)
    parts = parts_as_compared(
        requests,
        evaluator.blocks,
        rows,
        seed=place.choices.task_options.seed,
        is_kept=lambda block: any(_is_kept(place, side, block) for side in scored),
    )
    some = len(rows) < requests.n_documents
    asking.parts = parts if parts is not None else ([rows] if some else ())
    return asking, parts is not None


def _is_kept(place: Place, side: Scored, block: Block) -> bool:
    identity = None if side.description is None else side.description.identity
    cache = place.evaluator.cache
    if cache is None or identity is None:
        return False
    return cache.holds(digest_of(dict(identity)), block.digest)


def _oracle(
    place: Place,
    reference: Assigned,
    scale: Scale,
    runner: Runner,
    journal: Journal | None,
    asking: Asking,
) -> ModelOracle:
    evaluator, rows = place.evaluator, asking.rows
    blocks = asking.cut(reference, runner)
    cut = document_blocks(blocks, rows)
    if sum(block.documents.size for block in cut) != len(rows):
        raise EvaluationError(
            f"{place.key[0]}: the base was scored on {len(rows):,} documents, of which the task "
            f"has {sum(block.documents.size for block in cut):,} by now",
            hint="compare again: the task, or its data, changed since",
        )
    probes = Probes(
        asking=asking,
        runner=runner,
        records=Records(
            kept=KeptBlocks(evaluator.cache, evaluator.note),
            journal=journal,
            timeout=place.options.timeout,
        ),
        policy=place.policy,
        suspicion=Suspicion(control=place.candidate, block=blocks[cut[0].blocks[0]]),
    )
    return ModelOracle(
        candidate=place.candidate,
        scale=scale,
        declared=place.declared,
        document_blocks=cut,
        probes=probes,
        assigned_to=place.assigned,
    )


def _population(place: Place, reference: Assigned) -> int:
    """Documents that the comparison's sigma is about; 0: those that were scored."""
    early = place.choices.sequential_alpha is not None and reference.requests is not None
    return reference.requests.n_documents if early and reference.requests is not None else 0


def _table(side: Scored, key: Key) -> ScoreTable:
    found = next((table for table in side.tables if table.key == key), None)
    if found is None:
        raise UsageError(
            f"{side.identity.name} has no scores of {key[0]} ({key[1]}) {key[2]}",
            hint="a group of tasks is searched by one of its tasks",
        )
    return found


def _header(scored: tuple[Scored, Scored], choices: Choices) -> dict[str, Value]:
    return {
        "evalguard": evalguard.__version__,
        "base": scored[0].identity.digest,
        "base_name": scored[0].identity.name,
        "seed": choices.task_options.seed,
    }


def _search(inquiry: Inquiry, choices: Choices) -> dict[str, Value]:
    candidate = inquiry.candidate
    # How much of the base's distributions is kept decides what is estimated from it.
    kept = {} if inquiry.held_to is None else {"reference_top_k": choices.distributions.top_k}
    return {
        **kept,
        "candidate": digest_of([candidate.variant.digest, dict(candidate.variant.assignment)]),
        "candidate_name": candidate.name,
        "metric": list(inquiry.key),
    }
