"""The ModelDescription of a loaded lm-eval model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evalguard.models.batching import batching
from evalguard.models.caveats import model_caveats
from evalguard.models.computation import computation
from evalguard.models.identity import (
    environment,
    model_dtype,
    scoring_identity,
    torch_model,
)
from evalguard.models.no_room import RAN_OUT
from evalguard.models.tokenizer_digest import vocabulary
from evalguard.scorer import ModelDescription, ScoringPolicy

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from evalguard.models.piece_scoring import PieceScoring
    from evalguard.settings import Value


def describe(
    lm: LM,
    policy: ScoringPolicy,
    model_type: str,
    model_args: Mapping[str, Value],
    effective: Mapping[str, Value] | None,
    provenance: Mapping[str, Value] | None,
) -> ModelDescription:
    """Read off a loaded model what it is.

    Args:
        effective: setting name -> value read back.
        provenance: digests of weights and code; None where the weights cannot be proven.
    """
    if hasattr(lm, "settle") and lm.own_path:
        lm.settle()
    model = torch_model(lm)
    digest, size = vocabulary(lm)
    identity = None
    if provenance is not None:
        identity = scoring_identity(lm, model_type, model_args, policy, provenance)
    return ModelDescription(
        model_type=model_type,
        effective=dict(effective or {}),
        identity=identity,
        vocabulary_digest=digest,
        vocabulary_size=size,
        max_length=int(getattr(lm, "max_length", 0) or 0),
        dtype=model_dtype(lm),
        device=str(getattr(lm, "device", None) or ""),
        parameters=0 if model is None else _parameters(model),
        gives_rows=gives_rows(lm),
        environment=environment(lm, model_args),
        computation=computation(lm),
        caveats=model_caveats(lm, model_args),
    )


def _parameters(model: Any) -> int:
    """Weights of a model, tied ones once: accelerate copies them where it spreads a model."""
    sizes = {name: tensor.numel() for name, tensor in model.named_parameters()}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return sum(size for name, size in sizes.items() if tied.get(name) not in sizes)


def with_batches(description: ModelDescription, lm: PieceScoring) -> ModelDescription:
    """Say how batches are cut now, where memory ran out since the model was described."""
    found = batching(lm)
    if not hasattr(lm, "make_room") or all(
        description.computation.get(name) == value for name, value in found.items()
    ):
        return description
    identity = description.identity
    if identity is not None:
        asked = identity["policy"]
        assert isinstance(asked, Mapping)
        identity = {**identity, "policy": {**asked, **found}}
    return replace(
        description,
        computation={**description.computation, **found},
        identity=identity,
        caveats=(*(c for c in description.caveats if not c.startswith(RAN_OUT)), lm.room_note),
    )


def gives_rows(lm: LM) -> bool:
    """Whether a model shows the distributions that its scores are read from."""
    return hasattr(lm, "scored_batch") and bool(lm.own_path)
