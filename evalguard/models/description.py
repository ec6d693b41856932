"""The ModelDescription of a loaded lm-eval model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evalguard.core.scorer import ModelDescription, ScoringPolicy
from evalguard.models.batching import read_batching
from evalguard.models.built_findings import list_built_findings
from evalguard.models.computation import read_computation
from evalguard.models.configuration import read_configuration
from evalguard.models.hf.smaller_batches import OUT_OF_MEMORY
from evalguard.models.identity import (
    describe_environment,
    identity_of_lm,
    model_dtype,
    torch_model,
)
from evalguard.models.model_caveats import list_model_caveats, list_model_findings
from evalguard.models.tokenizers import digest_vocabulary
from evalguard.models.weight_memory import count_weight_bytes

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from evalguard.core.settings import Value
    from evalguard.models.assigned_model import EditedAttributes
    from evalguard.models.hf.piece_scoring import PieceScoring


def describe_model(
    lm: LM,
    policy: ScoringPolicy,
    model_type: str,
    model_args: Mapping[str, Value],
    effective: Mapping[str, Value] | None,
    provenance: Mapping[str, Value] | None,
    edited: EditedAttributes,
) -> ModelDescription:
    """Read off a loaded model what it is.

    Args:
        effective: setting name -> value read back.
        provenance: digests of weights and code; None where the weights cannot be proven.
        edited: attributes that settings have changed after the model was built.
    """
    if hasattr(lm, "settle") and lm.own_path:
        lm.settle()
    model = torch_model(lm)
    digest, size = digest_vocabulary(lm)
    identity = None
    if provenance is not None:
        identity = identity_of_lm(lm, model_type, model_args, policy, provenance)
    return ModelDescription(
        model_type=model_type,
        effective=dict(effective or {}),
        identity=identity,
        vocabulary_digest=digest,
        vocabulary_size=size,
        max_length=int(getattr(lm, "max_length", 0) or 0),
        dtype=model_dtype(lm),
        device=str(getattr(lm, "device", None) or ""),
        parameters=0 if model is None else _count_parameters(model),
        weight_bytes=0 if model is None else count_weight_bytes(model),
        gives_rows=shows_distributions(lm),
        environment=describe_environment(lm, model_args),
        computation=read_computation(lm),
        unshared=getattr(lm, "unshared", ""),
        padding=lm.padding if hasattr(lm, "forget_padding") else None,
        configuration=read_configuration(lm),
        caveats=list_model_caveats(lm, model_args),
        findings=(
            *list_model_findings(lm, edited),
            *list_built_findings(model_args.get("pretrained")),
        ),
    )


def _count_parameters(model: Any) -> int:
    """Weights of a model, tied ones once: accelerate copies them where it spreads a model."""
    sizes = {name: tensor.numel() for name, tensor in model.named_parameters()}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return sum(size for name, size in sizes.items() if tied.get(name) not in sizes)


def update_batching(description: ModelDescription, lm: PieceScoring) -> ModelDescription:
    """Say how batches are cut now, where memory ran out since the model was described."""
    found = read_batching(lm)
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
        caveats=(
            *(c for c in description.caveats if not c.startswith(OUT_OF_MEMORY)),
            lm.room_note,
        ),
    )


def shows_distributions(lm: LM) -> bool:
    """Whether a model shows the distributions that its scores are read from."""
    return hasattr(lm, "scored_batch") and bool(lm.own_path)
