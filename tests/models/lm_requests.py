"""Requests as lm-eval's tasks make them, and lm-eval's own answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from evalguard.core.scorer import Request

CONTEXTS = (
    "Mara carried the lantern down to the",
    "Nobody at the pier had seen",
    "",
    "She sat on the crates, counted the bells, and waited for the lantern to",
    "When the boat came at last, the keeper laughed and asked her why she had kept the light "
    "and the fog and the bells and the pier and the crates and the harbour and the light and the",
)
CONTINUATIONS = (" harbour", " boat", " the keeper laughed", "x")
TEXTS = (
    "Mara carried the lantern down to the harbour because the fog had come in early. "
    "Nobody at the pier had seen the boat, and the old keeper said that it would not return.",
    "She waited.",
    "",
    "The boat came at last. " * 12,
)


def pair_requests() -> list[Request]:
    """Multiple choice on every context: shared contexts, an empty one, one too long to fit."""
    return [
        Request(task="choice", doc_id=doc, index=index, kind="loglikelihood", arguments=(ctx, cont))
        for doc, ctx in enumerate(CONTEXTS)
        for index, cont in enumerate(CONTINUATIONS)
    ]


def rolling_requests(texts: Sequence[str] = TEXTS) -> list[Request]:
    return [
        Request(task="text", doc_id=doc, index=0, kind="loglikelihood_rolling", arguments=(text,))
        for doc, text in enumerate(texts)
    ]


def lm_eval_answers(folder: Path, requests: Sequence[Request], **model_args: Any) -> list[Any]:
    """Answers of lm-eval's own HFLM with a float32 softmax."""
    arguments = {"dtype": "float32", "softmax_dtype": "float32", "device": "cpu", **model_args}
    lm = HFLM(pretrained=str(folder), **arguments)
    instances = [
        Instance(request_type=r.kind, doc={}, arguments=r.arguments, idx=r.index) for r in requests
    ]
    return list(getattr(lm, requests[0].kind)(instances, disable_tqdm=True))
