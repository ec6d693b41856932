"""Models of a folder, opened as evalguard opens them; a test may reach into what is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evalguard.core.scorer import ScoringPolicy
from evalguard.models.assigned_model import AssignedModel
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm

POLICY = ScoringPolicy(batch_size=4, device="cpu")


class OpenedScorer(LMScorer):
    """A scorer that shows the lm-eval model that it asks."""

    def __init__(self, lm: Any, policy: ScoringPolicy, **about: Any) -> None:
        super().__init__(lm, policy, **about)
        self.lm = lm


def load_hf(folder: Path, policy: ScoringPolicy = POLICY, **model_args: Any) -> Any:
    """The lm-eval model of a folder, in float32 where nothing else is asked for."""
    arguments = {"pretrained": str(folder), "dtype": "float32", **model_args}
    return load_lm("hf", arguments, {}, policy, trust_remote_code=False, allow_pickle=False)


def open_hf(folder: Path, policy: ScoringPolicy = POLICY, **model_args: Any) -> OpenedScorer:
    """A scorer of that model, which has an identity."""
    return OpenedScorer(
        load_hf(folder, policy, **model_args),
        policy,
        model_type="hf",
        model_args={"pretrained": str(folder), "dtype": "float32", **model_args},
        assigned=AssignedModel(provenance={}),
    )
