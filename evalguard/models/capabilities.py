"""All that follows from what a loaded model computes now: found out by running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evalguard.core.scorer import (
    ModelDescription,
    ScoringPolicy,
)
from evalguard.errors import EvaluationError
from evalguard.models.answer_failures import explain_failures
from evalguard.models.assigned_model import AssignedModel
from evalguard.models.description import describe_model
from evalguard.models.encoded_texts import EncodedTexts, shared_texts
from evalguard.models.hf.smaller_batches import OUT_OF_MEMORY, BatchTooLargeError
from evalguard.models.quiet_libraries import silence_libraries
from evalguard.models.threads import use_threads
from evalguard.models.tokenizers import shareable_tokenizer_digest

if TYPE_CHECKING:
    from evalguard.core.settings import Value


def probe_capabilities(
    lm: Any,
    policy: ScoringPolicy,
    *,
    model_type: str,
    model_args: Mapping[str, Value],
    assigned: AssignedModel,
) -> ModelDescription:
    """Settle how a model is scored, as far as the policy leaves that to it, and describe it.

    Raises:
        EvaluationError: the model cannot read a few tokens.
    """
    try:
        with (
            use_threads(assigned.threads),
            explain_failures("reading a few tokens", ()),
            silence_libraries(),
        ):
            if hasattr(lm, "unsettle"):
                lm.unsettle()
            if policy.share_prefixes and getattr(lm, "own_path", False):
                from evalguard.models.hf.sharing_decision import decide_sharing

                decide_sharing(lm)
            described = describe_model(
                lm,
                policy,
                model_type,
                model_args,
                assigned.effective,
                assigned.provenance,
                assigned.edited,
            )
            _share_texts(lm)
    except BatchTooLargeError as error:
        raise EvaluationError(
            f"{OUT_OF_MEMORY} in reading a few tokens: {error}",
            hint="a narrower dtype, a smaller model_args.max_length or another machine",
        ) from None
    return replace(described, caveats=(*described.caveats, *assigned.caveats))


def _share_texts(lm: Any) -> None:
    """Let a model have its texts encoded together with others of the same tokenizer."""
    if hasattr(lm, "encode_ahead"):
        same = shareable_tokenizer_digest(lm)
        lm.texts = shared_texts(same) if same else EncodedTexts()
