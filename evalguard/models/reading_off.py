"""All that follows from what a loaded model computes now: found out by running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evalguard.errors import EvaluationError
from evalguard.models.assigned import Assigned
from evalguard.models.description import describe
from evalguard.models.encoded_texts import EncodedTexts, texts_of
from evalguard.models.failures import failures
from evalguard.models.no_room import RAN_OUT, NoRoomError
from evalguard.models.quiet import quiet
from evalguard.models.threads import computing_with
from evalguard.models.tokenizer_digest import shared_digest
from evalguard.scorer import ModelDescription, ScoringPolicy

if TYPE_CHECKING:
    from evalguard.settings import Value


def read_off(
    lm: Any,
    policy: ScoringPolicy,
    *,
    model_type: str,
    model_args: Mapping[str, Value],
    assigned: Assigned,
) -> ModelDescription:
    """Settle how a model is scored, as far as the policy leaves that to it, and describe it.

    Raises:
        EvaluationError: the model cannot read a few tokens.
    """
    try:
        with computing_with(assigned.threads), failures("reading a few tokens", ()), quiet():
            if hasattr(lm, "unsettle"):
                lm.unsettle()
            if policy.share_prefixes and getattr(lm, "own_path", False):
                from evalguard.models.sharing_probe import settle_sharing

                settle_sharing(lm)
            described = describe(
                lm, policy, model_type, model_args, assigned.effective, assigned.provenance
            )
            _share_texts(lm)
    except NoRoomError as error:
        raise EvaluationError(
            f"{RAN_OUT} in reading a few tokens: {error}",
            hint="a narrower dtype, a smaller model_args.max_length or another machine",
        ) from None
    return replace(described, caveats=(*described.caveats, *assigned.caveats))


def _share_texts(lm: Any) -> None:
    """Let a model have its texts encoded together with others of the same tokenizer."""
    if hasattr(lm, "encode_ahead"):
        same = shared_digest(lm)
        lm.texts = texts_of(same) if same else EncodedTexts()
