"""Two dumps as scored sides: what a gate, several candidates, reports and a history go on with."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from evalguard.core.compare_report import RunIdentity
from evalguard.core.findings import Finding
from evalguard.core.scores import ScoreTable, Uninformative
from evalguard.core.settings import Value, digest_of
from evalguard.distributions.task_distributions import TaskDivergences
from evalguard.engine.outputs.dump_pair import DumpPair
from evalguard.engine.outputs.output_numbers import (
    DocumentNumbers,
    OutputNumbers,
    score_logits,
    score_states,
)
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import DumpSource
from evalguard.harness.score_tables import TaskScores
from evalguard.stats.uninformative import with_uninformative

OUTPUT = "output"  # the task that the model's own output is
_NO_INPUTS = (
    "not both folders keep the inputs (inputs.npz): that both models were given the same "
    "is taken from the names of the documents"
)
_OWN_REFERENCE = Finding(
    kind="own_reference",
    text="no labels or texts lie beside the outputs: the base is its own reference, so that the "
    "verdict is one of likeness, and not of how well either model does",
    task=OUTPUT,
)


def score_dumps(
    sources: tuple[DumpSource, DumpSource], *, distributions: bool = True
) -> tuple[ScoredSide, ScoredSide]:
    """Score two dumps on the documents that both have.

    Args:
        distributions: compare those of logits, too.

    Raises:
        UsageError, MisalignedRunsError, EvaluationError: as ``DumpPair``; jiwer is not installed.
    """
    pair = DumpPair(sources[0].path, sources[1].path)
    outputs = [
        score_logits(pair, OUTPUT, distributions=distributions)
        if pair.logits
        else score_states(pair, OUTPUT),
        *(score_states(pair, point, point) for point in pair.hidden),
    ]
    own = pair.logits and pair.labels is None and not pair.texts
    scores = [
        [_scores(output, pair, side, source) for output in outputs]
        for side, source in enumerate(sources)
    ]
    base, candidate = (
        ScoredSide(
            identity=RunIdentity(
                name=source.name,
                digest=pair.digests[side].hexdigest(),
                kind="dump",
                description=f"outputs of {len(pair.documents):,} documents",
            ),
            tables=tuple(table for task_scores in scores[side] for table in task_scores.tables),
            samples={task_scores.task: task_scores for task_scores in scores[side]},
            findings=(_OWN_REFERENCE,) if own else (),
        )
        for side, source in enumerate(sources)
    )
    return base, replace(
        candidate,
        divergences={
            output.task: TaskDivergences(task=output.task, documents=tuple(output.divergences))
            for output in outputs
            if output.divergences
        },
    )


def _table(
    found: OutputNumbers,
    name: str,
    numbers: DocumentNumbers,
    pair: DumpPair,
    side: int,
    source: DumpSource,
) -> ScoreTable:
    n = len(pair.documents)
    names = [digest_of(document) for document in pair.documents]
    asked = tuple(digest_of(inputs) for inputs in pair.inputs) if all(pair.inputs) else tuple(names)
    table = ScoreTable(
        task=found.task,
        filter="none",
        metric=name,
        aggregation="mean",
        higher_is_better=numbers.higher_is_better,
        distance=numbers.distance,
        doc_ids=np.arange(n, dtype=np.int64),
        values=np.array((numbers.base, numbers.candidate)[side], dtype=np.float64),
        doc_hashes=names,
        prompt_hashes=asked,
        token_hashes=asked,
        target_hashes=[digest_of(_target(pair, row)) for row in range(n)],
        answers=tuple(found.answers[side]) if name == found.answered else (),
        n_total=n,
        source=f"the dump {source.name}",
        caveats=() if all(pair.inputs) else (_NO_INPUTS,),
        provenance=(numbers.said[side],) if numbers.said[side] else (),
    )
    kind = found.silent.get((side, name))
    silent = None if kind is None else Uninformative(kind=kind, documents=n, n=n)
    return with_uninformative(table, silent)


def _scores(found: OutputNumbers, pair: DumpPair, side: int, source: DumpSource) -> TaskScores:
    """The tables with a row for each document, as the samples of a task that a model was asked."""
    tables = [
        _table(found, name, numbers, pair, side, source) for name, numbers in found.metrics.items()
    ]
    given = found.likelihoods[side]
    rows: list[dict[str, Value]] = [
        {
            "doc_id": row,
            "doc": json.dumps({"document": name}),
            "prompt": name,
            "target": _target(pair, row),
            "doc_hash": tables[0].doc_hashes[row],
            "prompt_hash": tables[0].prompt_hashes[row],
            "target_hash": tables[0].target_hashes[row],
            "token_hash": "",
            "arguments": [json.dumps([name])],
            "loglikelihood": [float(given[row].sum()) if given else None],
            "is_greedy": [None],
            "text": [None],
            "token_logprobs": [given[row].tolist() if given else None],
            "truncated": False,
            "cut": False,
            "scores": json.dumps(
                {"none": {table.metric: float(table.values[row]) for table in tables}}
            ),
            "answers": json.dumps(
                {"none": {table.metric: table.answers[row] for table in tables if table.answers}}
            ),
            "generated": "",
        }
        for row, name in enumerate(pair.documents)
    ]
    return TaskScores(task=found.task, tables=tuple(tables), not_compared=(), samples=tuple(rows))


def _target(pair: DumpPair, row: int) -> str:
    """What is right: a document's text, or its labels."""
    if pair.texts:
        return pair.texts[row]
    return "" if pair.labels is None else " ".join(map(str, pair.labels[row].tolist()))
