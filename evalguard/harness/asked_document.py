"""AskedDocument: what is the same for every model that is asked about a document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalguard.core.score_items import request_hash
from evalguard.core.scorer import Request

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
