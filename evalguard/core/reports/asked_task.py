"""AskedTask: how a task was asked in a run, so that another run can be told to have asked alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value

_DIGITS = 16
_UNVERSIONED = "Yaml"  # ``ConfigurableTask.VERSION`` of lm-eval, of a task that declares none
NO_VERSION = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTask:
    """A task as both sides were asked it; what is not known is None or "".

    Attributes:
        n: documents that were asked, of ``n_total`` (0: not known).
        version: that the task declares; "none": it declares none.
        output_type: lm-eval's kind of request: loglikelihood, multiple_choice, generate_until ...
        num_fewshot: examples in each prompt, and ``fewshot_seed`` by which they were drawn.
        dataset: where the documents come from, an id of the hub; "" for data of one's own.
            ``config``, ``split`` and ``revision`` (a commit) are those of the dataset.
        documents: digest over the ids and contents of the documents.
        prompts: digest over the base's prompts, few-shot examples and templates included.
        base_template, candidate_template: by which chat template each side's prompts were made,
            as SOURCE#DIGEST (sha256 of its text): tokenizer, argument or a name, of
            ``chat_template_args``; lm-eval of a finished run; server where a server has its own.
            "" for none.
        candidate_template: the candidate's.
        n_total: documents that the task has.
        fewshot_seed: None where there are no examples.
        config: name of the dataset's part.
        split: of the dataset.
        revision: commit of the dataset.
    """

    task: str
    n: int
    n_total: int = 0
    version: str = ""
    output_type: str = ""
    num_fewshot: int | None = None
    fewshot_seed: int | None = None
    dataset: str = ""
    config: str = ""
    split: str = ""
    revision: str = ""
    documents: str = ""
    prompts: str = ""
    base_template: str = ""
    candidate_template: str = ""


def list_asked_tasks(
    base: Sequence[ScoreTable], candidate: Sequence[ScoreTable]
) -> tuple[AskedTask, ...]:
    """Return the tasks that both sides answered, in the candidate's order."""
    ours = {table.task: table for table in reversed(base)}
    theirs = {table.task: table for table in reversed(candidate)}
    tasks = dict.fromkeys(table.task for table in candidate if table.task in ours)
    return tuple(_asked_task(ours[task], theirs[task]) for task in tasks)


def _asked_task(base: ScoreTable, candidate: ScoreTable) -> AskedTask:
    run = {**base.run, **candidate.run}
    data = candidate.dataset or base.dataset
    version = _text(run.get("task_version"))
    return AskedTask(
        task=candidate.task,
        n=candidate.n,
        n_total=candidate.n_total or base.n_total,
        version=NO_VERSION if version == _UNVERSIONED else version,
        output_type=_text(run.get("output_type")),
        num_fewshot=_number(run.get("num_fewshot")),
        fewshot_seed=_number(run.get("fewshot_seed")),
        **{name: _text(data.get(name)) for name in ("dataset", "config", "split", "revision")},
        documents=_digest(candidate, candidate.doc_hashes),
        prompts=_digest(base, base.prompt_hashes),
        base_template=_template(base),
        candidate_template=_template(candidate),
    )


def _template(table: ScoreTable) -> str:
    """By which template prompts were made; a finished run records its text's digest alone."""
    reading = table.reading or {}
    found = _text(reading.get("chat_template"))
    return f"lm-eval#{found[:_DIGITS]}" if found and reading.get("finished") else found


def _text(value: Value) -> str:
    return "" if value is None else str(value)


def _number(value: Value) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def _digest(table: ScoreTable, hashes: Sequence[str]) -> str:
    """Over the documents in their order; "" where the run does not show all hashes."""
    if len(hashes) != table.n or not all(hashes):
        return ""
    digest = hashlib.sha256()
    for line in _lines(table, hashes):
        digest.update(line)
    return digest.hexdigest()[:_DIGITS]


def _lines(table: ScoreTable, hashes: Sequence[str]) -> Iterator[bytes]:
    for doc_id, one in zip(table.doc_ids.tolist(), hashes, strict=True):
        yield f"{doc_id} {one}\n".encode()
