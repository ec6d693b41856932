"""TaskRequests: everything one task asks of a model, as plain data, in blocks of documents."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from evalguard.core.document_columns import DocumentFields, read_fields
from evalguard.core.document_statistics import request_hash
from evalguard.core.scorer import Request, RequestKind, Response
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError
from evalguard.harness.request_blocks import BlockCut, RequestBlock, cut_blocks, text_lengths
from evalguard.harness.surroundings import lm_eval_surroundings, read_task_data, task_code
from evalguard.harness.task_options import TaskOptions

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedDocument:
    """One document with its prompt, target and hashes as in lm-eval's sample files.

    Attributes:
        options: the texts to choose from, () where lm-eval chooses none of them.
        asked_hash: of the texts of all requests.
        written, arguments: the document and each request's arguments as JSON texts.
    """

    doc_id: int
    doc: Any
    prompt: str
    target: str
    doc_hash: str
    prompt_hash: str
    target_hash: str
    asked_hash: str
    options: tuple[str, ...]
    requests: tuple[Request, ...]
    written: str
    arguments: tuple[str, ...]


def requested_document(
    task: Task, doc: Any, first: Instance, requests: Sequence[Request]
) -> AskedDocument:
    """Hash a document exactly as lm_eval.evaluator.evaluate does for its sample files.

    Args:
        first: the first of the document's instances.
        requests: all of its requests.

    Raises:
        Exception: whatever the task's own code raises.
    """
    from lm_eval.utils import handle_non_serializable, hash_string

    hashed = json.dumps(first.doc, indent=2, default=handle_non_serializable, ensure_ascii=False)
    prompt, target = first.arguments[0], str(task.doc_to_target(doc))
    return AskedDocument(
        doc_id=first.doc_id,
        doc=doc,
        prompt=prompt,
        target=target,
        doc_hash=hash_string(hashed),
        prompt_hash=hash_string(prompt),
        target_hash=hash_string(target),
        asked_hash=request_hash(request.arguments for request in requests),
        options=_options(task, doc),
        requests=tuple(requests),
        written=written(doc),
        arguments=tuple(written(request.arguments) for request in requests),
    )


def written(value: Any) -> str:
    """Return what lm-eval can write as JSON text."""
    from lm_eval.utils import handle_non_serializable

    return json.dumps(value, default=handle_non_serializable, ensure_ascii=False)


def _options(task: Any, doc: Any) -> tuple[str, ...]:
    """A document's options, in lm-eval's order; () where the task is none of multiple choice.

    A task with a ``process_results`` of its own chooses by its own rules: () too.
    """
    own_rules = callable(getattr(task.config, "process_results", None))
    if task.OUTPUT_TYPE != "multiple_choice" or own_rules:
        return ()
    return tuple(task.doc_to_choice(doc))


class RenderChat(Protocol):
    """A model's chat template, as ``Scorer.render_chat``."""

    def __call__(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequests:
    """The requests of one task, and what is needed to turn their answers into scores.

    Attributes:
        task: the task's name.
        requests: ordered by doc_id, then index; a task of several kinds has one kind after the
            other. Repeats of a request are requests of their own.
        doc_ids: lm-eval's own, ascending.
        n_total: documents the task has, scored or not.
        run: what both sides of a comparison must share beside the documents.
        dataset: where the documents come from, as ``ScoreTable.dataset``.
        notes: what was asked for and could not be applied.
        average_repeats: whether repeated answers to a document are averaged (see ``repeats``).
        drawn_from: documents that these were drawn from; 0: they are no part of others.
        chat: whether a chat template makes the prompts.
        lengths: by doc_id, to sort the documents by; empty: that of their requests counts.
        asked: by doc_id, what all models share of a document, as it was made for the first of them.
    """

    task: str
    requests: tuple[Request, ...]
    doc_ids: tuple[int, ...]
    n_total: int
    run: Mapping[str, Value]
    notes: tuple[str, ...] = ()
    average_repeats: bool = True
    drawn_from: int = 0
    chat: bool = False
    lengths: Mapping[int, int] = field(default_factory=dict, repr=False)
    dataset: Mapping[str, Value] = field(default_factory=dict)
    lm_eval_task: Task = field(repr=False, compare=False)
    instances: tuple[Instance, ...] = field(repr=False, compare=False)
    documents: Mapping[int, Any] = field(repr=False, compare=False)
    asked: dict[int, AskedDocument] = field(repr=False, compare=False, default_factory=dict)
    _fields: list[DocumentFields] = field(
        init=False, repr=False, compare=False, default_factory=list
    )
    _cut: dict[BlockCut, list[RequestBlock]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    @property
    def n_documents(self) -> int:
        """Number of documents that are scored."""
        return len(self.doc_ids)

    @property
    def fields(self) -> DocumentFields:
        """Texts and whole numbers of the documents, which may say what they share."""
        if not self._fields:
            self._fields.append(read_fields(self.documents))
        return self._fields[0]

    def blocks(self, cut: BlockCut) -> list[RequestBlock]:
        """Cut the requests into blocks; see ``cut_blocks``.

        Where each model has a chat template of its own, the documents are sorted by their own
        length, not the prompts', so that all models have the same documents in a block.
        """
        if cut not in self._cut:
            lengths = self.lengths or text_lengths(self.requests)
            self._cut[cut] = cut_blocks(self.requests, lengths, cut, drawn_from=self.drawn_from)
        return self._cut[cut]

    def in_order(self, answers: Mapping[tuple[int, int], Response]) -> list[Response]:
        """Return answers, found by (doc_id, index), in the order of ``requests``."""
        return [answers[request.doc_id, request.index] for request in self.requests]


def build_requests(
    name: str,
    task: Task,
    options: TaskOptions,
    *,
    render_chat: RenderChat | None,
    notes: tuple[str, ...] = (),
) -> TaskRequests:
    """Let lm-eval build the requests of a task, with its few-shot sampler seeded anew.

    Raises:
        EvaluationError: if the task's own code fails, asks for what is not plain data, or needs a
            chat template that the model does not give.
    """
    if options.apply_chat_template and render_chat is None:
        raise EvaluationError(
            f"task '{name}': a chat template is to be applied, but this model has none",
            hint="leave out --apply_chat_template",
        )
    with lm_eval_surroundings(), task_code(f"task '{name}': its requests cannot be built"):
        documents, n_total = _build(task, options, render_chat)
    requests = tuple(_requests(name, in_request_order(task.instances)))
    return TaskRequests(
        task=name,
        requests=requests,
        doc_ids=tuple(documents),
        n_total=n_total,
        run=_run(name, task, options, n=len(documents), n_total=n_total),
        notes=(*notes, *_unapplied(requests, options)),
        average_repeats=options.average_repeats,
        chat=bool(options.apply_chat_template) or name in options.chats,
        lengths=_own_lengths(documents) if options.apply_chat_template else {},
        dataset=read_task_data(task),
        lm_eval_task=task,
        instances=tuple(task.instances),
        documents=documents,
    )


def _unapplied(requests: Sequence[Request], options: TaskOptions) -> Iterator[str]:
    """A chat template may refuse a system instruction, and lm-eval then leaves it out."""
    instruction = options.system_instruction.strip()
    if instruction and not any(instruction in str(request.arguments[0]) for request in requests):
        yield "the system instruction is in no prompt: the task or the chat template takes none"


def _build(
    task: Task, options: TaskOptions, render_chat: RenderChat | None
) -> tuple[dict[int, Any], int]:
    from lm_eval.evaluator_utils import get_sample_size

    limit = get_sample_size(task, options.limit)
    # The sampler's generator lives on the task: without this a second model would get other
    # examples than the first.
    task.set_fewshot_seed(seed=options.seed)
    # cache_requests stays off: lm-eval's request cache knows neither dataset, config nor seed.
    task.build_all_requests(
        limit=limit,
        rank=0,
        world_size=1,
        cache_requests=False,
        system_instruction=options.system_instruction or None,
        apply_chat_template=bool(options.apply_chat_template),
        fewshot_as_multiturn=options.multiturn,
        chat_template=render_chat if options.apply_chat_template else None,
    )
    # Documents as the requests were built from them: lm-eval reads them a second time here, and a
    # task that shuffles without a seed would then score one document's answers as another's.
    documents: dict[int, Any] = {}
    for instance in task.instances:
        documents.setdefault(instance.doc_id, instance.doc)
    n_total = len(task.eval_docs)
    expected = n_total if limit is None else min(limit, n_total)
    if len(documents) != expected:
        raise EvaluationError(
            f"task '{task.task_name}' asks nothing about {expected - len(documents)} of its "
            f"{expected} documents"
        )
    return dict(sorted(documents.items())), n_total


def _own_lengths(documents: Mapping[int, Any]) -> dict[int, int]:
    return {doc_id: len(str(document)) for doc_id, document in documents.items()}


def in_request_order(instances: Sequence[Instance]) -> list[Instance]:
    """Return lm-eval's instances in the order of ``TaskRequests.requests``."""
    kinds = list(dict.fromkeys(instance.request_type for instance in instances))
    return sorted(instances, key=lambda i: (kinds.index(i.request_type), i.doc_id, i.idx))


def _requests(task: str, instances: Sequence[Instance]) -> Iterator[Request]:
    """One request per instance and repeat, as lm_eval.evaluate clones them."""
    counts: dict[int, int] = defaultdict(int)
    for instance in instances:
        arguments = tuple(_plain(argument, task) for argument in instance.args)
        for _ in range(instance.repeats or 1):
            yield Request(
                task=task,
                doc_id=instance.doc_id,
                index=counts[instance.doc_id],
                kind=cast(RequestKind, instance.request_type),
                arguments=arguments,
            )
            counts[instance.doc_id] += 1


def _plain(value: Any, task: str) -> Value:
    """Return a copy in JSON's types only: requests are hashed and travel to other processes."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return cast(Value, value.item())
    if isinstance(value, (list, tuple)):
        return [_plain(item, task) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item, task) for key, item in value.items()}
    raise EvaluationError(
        f"task '{task}': a request holds a {type(value).__name__}, which is not a text or number"
    )


def _run(name: str, task: Task, options: TaskOptions, *, n: int, n_total: int) -> dict[str, Value]:
    """What both sides must share, by the keys that a stored lm-eval run has too.

    Chat template and system instruction are not among them: they may be under test, and show in
    the prompt hashes.
    """
    shots = task.get_config("num_fewshot") or 0
    run: dict[str, Value] = {
        "num_fewshot": shots,
        "limit": n if n < n_total else "all",
        "task_version": _plain(task.VERSION, name),
        "output_type": str(task.OUTPUT_TYPE),
    }
    if shots:
        run["fewshot_seed"] = options.seed
    if task.OUTPUT_TYPE == "generate_until":
        run["generation_kwargs"] = _plain(task.get_config("generation_kwargs"), name)
    return run


def random_subset(requests: TaskRequests, size: int, *, seed: int) -> TaskRequests:
    """Return the requests of ``size`` documents, drawn at random without replacement.

    Requests are picked after lm-eval has built all of them. Its own ``samples`` would number the
    documents anew from 0 (and, given unsorted, mislabel them), and its few-shot sampler, which goes
    through the documents in turn, would give them other examples than the whole run does.

    Args:
        requests: of all documents.
        size: documents to keep; all of them are kept where there are no more.
        seed: the same seed draws the same documents of tasks with equally many.

    Returns:
        Requests with lm-eval's doc_ids, ascending; ``run`` says how many documents there are.
    """
    if size >= requests.n_documents:
        return requests
    drawn = np.random.default_rng(seed).choice(requests.n_documents, size=size, replace=False)
    part = documents_of(requests, [requests.doc_ids[position] for position in drawn.tolist()])
    return replace(part, drawn_from=0, run={**requests.run, "limit": size})


def documents_of(requests: TaskRequests, doc_ids: Collection[int]) -> TaskRequests:
    """Return the requests of some documents, asked exactly as among all of them.

    Args:
        requests: of all documents.
        doc_ids: lm-eval's, in any order; each is one of ``requests``.

    Returns:
        Requests with these documents, ascending, which know how many they were drawn from;
        everything else is that of all documents.
    """
    chosen = frozenset(doc_ids)
    return replace(
        requests,
        doc_ids=tuple(doc_id for doc_id in requests.doc_ids if doc_id in chosen),
        requests=tuple(r for r in requests.requests if r.doc_id in chosen),
        drawn_from=requests.drawn_from or requests.n_documents,
        instances=tuple(i for i in requests.instances if i.doc_id in chosen),
        documents={key: value for key, value in requests.documents.items() if key in chosen},
    )
